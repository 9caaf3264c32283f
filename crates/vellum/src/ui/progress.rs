//! Progress of long operations: a line on a terminal that redraws itself, plain lines with `--verbose` elsewhere,
//! otherwise nothing. Also carries Ctrl-C to the operation.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use vellum_volume::progress::{Meter, Progress};

use super::{Ui, format};
use crate::interrupt;

/// Between two looks at the meter: often enough for the eye and for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);

/// Operations shorter than this show nothing.
const PATIENCE: Duration = Duration::from_millis(400);

/// Between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(3);

/// What an operation is called, and what it counts.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// A word for the line's beginning: "Scanning".
    pub verb: &'static str,
    /// What an item is: "file".
    pub item: &'static str,
}

enum Shown {
    Bar(ProgressBar),
    Plain,
    Nothing,
}

/// Runs `work` with a meter that is shown while it runs.
pub fn watch<T>(ui: &Ui, task: Task, work: impl FnOnce(&Meter) -> T) -> T {
    let shown = if ui.voice.quiet || ui.voice.json && !ui.voice.verbose {
        Shown::Nothing
    } else if io::stderr().is_terminal() {
        Shown::Bar(ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()))
    } else if ui.voice.verbose {
        Shown::Plain
    } else {
        Shown::Nothing
    };
    let meter = Meter::default();
    let (end, ended) = sync_channel::<()>(0);
    std::thread::scope(|scope| {
        scope.spawn(|| follow(&meter, task, shown, ended));
        let result = work(&meter);
        drop(end);
        result
    })
}

/// Until `ended` hangs up: shows the meter, and hands on Ctrl-C.
fn follow(meter: &Meter, task: Task, shown: Shown, ended: Receiver<()>) {
    let asked = interrupt::listen();
    let start = Instant::now();
    let mut last_plain = start;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
        if interrupt::asked(&asked) {
            meter.stop();
        }
        let elapsed = start.elapsed();
        match &shown {
            Shown::Bar(bar) if elapsed >= PATIENCE => draw(bar, &line(task, meter.read(), elapsed)),
            Shown::Plain if last_plain.elapsed() >= PLAIN_EVERY => {
                last_plain = Instant::now();
                eprintln!("{}", line(task, meter.read(), elapsed));
            }
            Shown::Bar(_) | Shown::Plain | Shown::Nothing => {}
        }
    }
    if let Shown::Bar(bar) = &shown {
        bar.finish_and_clear();
    }
}

fn draw(bar: &ProgressBar, line: &str) {
    if bar.is_hidden() {
        bar.set_draw_target(ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
    }
    bar.set_message(line.to_owned());
    bar.tick();
}

/// One line: what, how much of how much, how fast, how long still.
fn line(task: Task, now: Progress, elapsed: Duration) -> String {
    let mut parts = Vec::with_capacity(4);
    parts.push(match now.total_items {
        0 => format::count(now.items, task.item),
        total => format!("{} of {}", format::number(now.items), format::count(total, task.item)),
    });
    if now.bytes > 0 || now.total_bytes > 0 {
        parts.push(match now.total_bytes {
            0 => format::size(now.bytes),
            total => format!("{} of {}", format::size(now.bytes), format::size(total)),
        });
        if let Some(rate) = per_second(now.bytes, elapsed) {
            parts.push(format!("{}/s", format::size(rate)));
        }
    }
    if let Some(left) = time_left(now, elapsed) {
        parts.push(format!("{} left", format::span(left)));
    }
    format!("{}: {}", task.verb, parts.join(", "))
}

fn per_second(amount: u64, elapsed: Duration) -> Option<u64> {
    let millis = u64::try_from(elapsed.as_millis()).ok()?;
    amount.checked_mul(1000)?.checked_div(millis)
}

/// By bytes where they are known, else by items; nothing before a little is done.
fn time_left(now: Progress, elapsed: Duration) -> Option<Duration> {
    let (done, total) = match (now.total_bytes, now.total_items) {
        (0, 0) => return None,
        (0, items) => (now.items, items),
        (bytes, _) => (now.bytes, bytes),
    };
    let left = total.checked_sub(done).filter(|_| done > 0 && done.saturating_mul(100) >= total)?;
    let millis = u128::from(left) * elapsed.as_millis() / u128::from(done);
    u64::try_from(millis).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Task = Task { verb: "Scanning", item: "file" };

    #[test]
    fn an_unknown_total_shows_what_was_done_and_how_fast() {
        let now = Progress { items: 1200, bytes: 10 << 20, ..Progress::default() };
        assert_eq!(line(TASK, now, Duration::from_secs(2)), "Scanning: 1,200 files, 10.0 MiB, 5.0 MiB/s");
    }

    #[test]
    fn a_known_total_shows_the_time_left() {
        let now = Progress { items: 1, bytes: 1 << 20, total_items: 4, total_bytes: 4 << 20 };
        let text = line(TASK, now, Duration::from_secs(20));
        assert_eq!(text, "Scanning: 1 of 4 files, 1.0 MiB of 4.0 MiB, 51.2 KiB/s, 1:00 min left");
    }

    #[test]
    fn no_time_is_guessed_before_anything_is_done() {
        let now = Progress { total_items: 4, ..Progress::default() };
        assert_eq!(line(TASK, now, Duration::from_secs(1)), "Scanning: 0 of 4 files");
    }
}
