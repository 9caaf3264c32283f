//! Progress of long operations: a line on a terminal that redraws itself, plain lines with `--verbose` elsewhere, JSON
//! lines among the results with `--json=lines`, otherwise nothing. Also carries Ctrl-C to the operation.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vellum_host::ProgressMeter;
use vellum_host::progress::ProgressReading;

use super::json::{self, JsonForm, ProgressLineJson};
use super::{OutputOptions, UserInterface, format};
use crate::interrupt;

/// Between two looks at the meter: often enough for the eye and for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);

/// Operations shorter than this show nothing.
const PATIENCE: Duration = Duration::from_millis(400);

/// What was done within this time decides how fast it goes, in ticks: steady to the eye, and soon true after a change.
const WINDOW: usize = 50;

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(3);

/// Between two JSON lines: often enough for whoever shows them, and to see that the operation is alive.
const JSON_EVERY: Duration = Duration::from_millis(500);

/// What an operation is called, and what it counts.
#[derive(Debug, Clone, Copy)]
pub struct ProgressTask {
    /// What it does before it counts anything: "Scanning".
    pub first: &'static str,
    /// What it does then: "Recording".
    pub verb: &'static str,
    /// What an item is: "file".
    pub item: &'static str,
}

enum ProgressDisplay {
    Bar(ProgressBar),
    Plain,
    JsonLines,
    Nothing,
}

impl ProgressDisplay {
    fn choose(ui: &UserInterface, loud: bool) -> Self {
        let OutputOptions { json, quiet, verbose, .. } = ui.voice;
        // A program that reads JSON gets progress only if it asks for it.
        match json {
            _ if quiet => Self::Nothing,
            Some(JsonForm::Lines) => Self::JsonLines,
            Some(JsonForm::Object) if !verbose && !loud => Self::Nothing,
            _ if io::stderr().is_terminal() => {
                // Hidden, because it is shown only if the operation takes longer than `PATIENCE`.
                Self::Bar(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()))
            }
            _ if verbose || loud => Self::Plain,
            _ => Self::Nothing,
        }
    }
}

/// Runs `work` with a meter that is shown while it runs.
pub fn run_with_progress<T>(
    ui: &UserInterface,
    task: ProgressTask,
    work: impl FnOnce(&ProgressMeter) -> T,
) -> T {
    run_with_forced_progress(ui, task, false, work)
}

/// As [`run_with_progress`]; with `loud`, plain lines are shown where standard error is not a terminal.
pub fn run_with_forced_progress<T>(
    ui: &UserInterface,
    task: ProgressTask,
    loud: bool,
    work: impl FnOnce(&ProgressMeter) -> T,
) -> T {
    let shown = ProgressDisplay::choose(ui, loud);
    if let ProgressDisplay::JsonLines = shown {
        // What was printed before stands before the lines of this operation. A reader that has gone away is noticed when
        // the result is printed.
        let _ = ui.flush_output();
    }
    let meter = ProgressMeter::default();
    // Before the work begins: what it makes first has to be removed, too.
    let stop_flag = interrupt::install_signal_handlers();
    // Nothing is ever sent: the end of the sender is the signal.
    let (end, ended) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(|| display_until_done(&meter, task, shown, &stop_flag, ended));
        let result = work(&meter);
        // The thread ends at once, and not after another tick.
        drop(end);
        result
    })
}

/// Until `ended` hangs up: shows the meter, and hands on Ctrl-C.
fn display_until_done(
    meter: &ProgressMeter,
    task: ProgressTask,
    shown: ProgressDisplay,
    stop_flag: &AtomicBool,
    ended: Receiver<()>,
) {
    let start = Instant::now();
    let mut last_line = start;
    let mut recent = RecentProgress::default();
    let print_json = |now| {
        if let ProgressDisplay::JsonLines = shown {
            print_json_line(task, now, start.elapsed());
        }
    };
    // The first line says that the operation has begun, and the last one what it has done: also of one that takes no time.
    print_json(meter.read_progress());
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
        if interrupt::should_stop(stop_flag) {
            meter.request_stop();
        }
        let elapsed = start.elapsed();
        let now = meter.read_progress();
        recent.record_progress(elapsed, now);
        match &shown {
            ProgressDisplay::Bar(bar) if elapsed >= PATIENCE => {
                draw_progress(bar, format_progress_line(task, now, &recent, terminal_columns()))
            }
            ProgressDisplay::JsonLines if last_line.elapsed() >= JSON_EVERY => {
                last_line = Instant::now();
                print_json_line(task, now, elapsed);
            }
            ProgressDisplay::Plain if last_line.elapsed() >= PLAIN_EVERY => {
                last_line = Instant::now();
                // Nobody may read standard error any more, which is no reason to end the work.
                let _ = writeln!(io::stderr(), "{}", format_progress_line(task, now, &recent, usize::MAX));
            }
            ProgressDisplay::Bar(_)
            | ProgressDisplay::Plain
            | ProgressDisplay::JsonLines
            | ProgressDisplay::Nothing => {}
        }
    }
    print_json(meter.read_progress());
    if let ProgressDisplay::Bar(bar) = &shown {
        // Cleared and not left behind, since the result follows on the same terminal.
        bar.finish_and_clear();
    }
}

/// Written at once and past the buffer of the results, which belongs to the thread that works.
fn print_json_line(task: ProgressTask, now: ProgressReading, elapsed: Duration) {
    let mut line = Vec::new();
    let written = json::write_object(&mut line, JsonForm::Lines, &ProgressLineJson::new(task, now, elapsed));
    // Nobody may read standard output any more: the work goes on, and the result finds out.
    let _ = written.and_then(|()| io::stdout().lock().write_all(&line));
}

/// Columns of the terminal.
fn terminal_columns() -> usize {
    rustix::termios::tcgetwinsize(io::stderr()).map_or(usize::MAX, |size| usize::from(size.ws_col))
}

fn draw_progress(bar: &ProgressBar, line: String) {
    if bar.is_hidden() {
        // Hidden until now: an operation that ends soon leaves no trace on the terminal.
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
            bar.set_style(style);
        }
    }
    bar.set_message(line);
}

/// What the meter said lately.
#[derive(Default)]
struct RecentProgress {
    readings: VecDeque<(Duration, ProgressReading)>,
}

impl RecentProgress {
    fn record_progress(&mut self, elapsed: Duration, now: ProgressReading) {
        // Without a count there is no speed yet.
        if (now.items, now.bytes) == (0, 0) {
            // A phase without a count, such as a scan, would otherwise slow the rate of the phase that follows.
            self.readings.clear();
        }
        self.readings.push_back((elapsed, now));
        if self.readings.len() > WINDOW {
            self.readings.pop_front();
        }
    }

    /// How much a second of what `count` reads.
    fn rate_per_second(&self, count: impl Fn(ProgressReading) -> u64) -> Option<u64> {
        let (first, before) = *self.readings.front()?;
        let (last, after) = *self.readings.back()?;
        let millis = u64::try_from(last.saturating_sub(first).as_millis()).ok()?;
        // None if no time has passed between the two readings.
        count(after).saturating_sub(count(before)).checked_mul(1000)?.checked_div(millis)
    }

    /// By bytes where they are known, else by items.
    fn estimate_time_left(&self, now: ProgressReading) -> Option<Duration> {
        let (left, rate) = match (now.total_bytes, now.total_items) {
            (0, 0) => return None,
            (0, items) => (items.saturating_sub(now.items), self.rate_per_second(|now| now.items)?),
            (bytes, _) => (bytes.saturating_sub(now.bytes), self.rate_per_second(|now| now.bytes)?),
        };
        left.checked_mul(1000)?.checked_div(rate).map(Duration::from_millis)
    }
}

/// Up to the next second: an estimate is not more exact than that.
fn round_up_to_second(left: Duration) -> Duration {
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}

/// One line: what, how much of how much, how fast, how long still. What does not fit into the columns is left out: how
/// long it takes still is the last that goes.
fn format_progress_line(
    task: ProgressTask,
    now: ProgressReading,
    recent: &RecentProgress,
    columns: usize,
) -> String {
    if now == ProgressReading::default() {
        return format!("{}…", task.first);
    }
    let mut parts = Vec::with_capacity(4);
    parts.push(match now.total_items {
        0 => format::format_count(now.items, task.item),
        total => {
            format!("{} of {}", format::format_number(now.items), format::format_count(total, task.item))
        }
    });
    if now.bytes > 0 || now.total_bytes > 0 {
        parts.push(match now.total_bytes {
            0 => format::format_size(now.bytes),
            total => format!("{} of {}", format::format_size(now.bytes), format::format_size(total)),
        });
    }
    let known = now.total_items > 0 || now.total_bytes > 0;
    // Everything is counted, and the work has not ended: what remains, such as a flush to disk, has no count.
    if known && now.items >= now.total_items && now.bytes >= now.total_bytes {
        parts.push("finishing".into());
    } else {
        parts.extend(
            recent
                .rate_per_second(|now| now.bytes)
                .filter(|rate| *rate > 0)
                .map(|rate| format!("{}/s", format::format_size(rate))),
        );
        parts.extend(
            recent
                .estimate_time_left(now)
                .map(|left| format!("{} left", format::format_duration(round_up_to_second(left)))),
        );
    }
    loop {
        let line = format!("{}: {}", task.verb, parts.join(", "));
        if parts.len() == 1 || line.chars().count() <= columns {
            return line;
        }
        // From the front, because the time that is left stands last.
        parts.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: ProgressTask = ProgressTask { first: "Scanning", verb: "Recording", item: "file" };

    fn shown(start: ProgressReading, now: ProgressReading, seconds: u64) -> String {
        let mut recent = RecentProgress::default();
        recent.record_progress(Duration::from_secs(100), start);
        recent.record_progress(Duration::from_secs(100 + seconds), now);
        format_progress_line(TASK, now, &recent, 80)
    }

    #[test]
    fn an_unknown_total_shows_what_was_done_and_how_fast() {
        let now = ProgressReading { items: 1200, bytes: 10 << 20, ..ProgressReading::default() };
        assert_eq!(shown(ProgressReading::default(), now, 2), "Recording: 1,200 files, 10.0 MiB, 5.0 MiB/s");
    }

    #[test]
    fn a_known_total_shows_the_time_left_at_the_present_speed() {
        let start = ProgressReading { items: 1, bytes: 1 << 20, total_items: 4, total_bytes: 4 << 20 };
        let now = ProgressReading { items: 2, bytes: 2 << 20, ..start };
        let text = shown(start, now, 20);
        assert_eq!(text, "Recording: 2 of 4 files, 2.0 MiB of 4.0 MiB, 51.2 KiB/s, 40 s left");
    }

    #[test]
    fn on_a_narrow_terminal_the_time_left_is_still_told() {
        let start = ProgressReading { items: 1, bytes: 1 << 20, total_items: 400_000, total_bytes: 40 << 30 };
        let now = ProgressReading { items: 200_000, bytes: 20 << 30, ..start };
        let mut recent = RecentProgress::default();
        recent.record_progress(Duration::from_secs(100), start);
        recent.record_progress(Duration::from_millis(120_618), now);
        let at = |columns| format_progress_line(TASK, now, &recent, columns);
        assert_eq!(at(60), "Recording: 20.0 GiB of 40.0 GiB, 993.3 MiB/s, 21 s left");
        assert_eq!(at(40), "Recording: 993.3 MiB/s, 21 s left");
        assert_eq!(at(10), "Recording: 21 s left");
    }

    #[test]
    fn no_time_is_guessed_before_anything_is_done() {
        let now = ProgressReading { total_items: 4, ..ProgressReading::default() };
        assert_eq!(shown(now, now, 1), "Recording: 0 of 4 files");
        assert_eq!(shown(ProgressReading::default(), ProgressReading::default(), 1), "Scanning…");
    }

    #[test]
    fn what_comes_after_the_last_item_has_a_name() {
        let now = ProgressReading { items: 4, total_items: 4, ..ProgressReading::default() };
        assert_eq!(shown(ProgressReading::default(), now, 1), "Recording: 4 of 4 files, finishing");
    }
}
