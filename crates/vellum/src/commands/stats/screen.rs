//! The whole terminal, with every kind of request, until `q`. Plain ANSI: it is drawn anew each time, and what was there
//! before is there again when it ends, as is the way in which the terminal takes what is typed.

use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use vellum_host::escape::format_path;

use super::figures::{
    IntervalFigures, OperationRate, format_short_bytes, format_short_latency, format_short_rate,
};
use super::layout::{FigureGroup, keep_end};
use super::remotes::RemoteFigures;
use crate::error::{CliError, Result};
use crate::ui::UserInterface;
use crate::ui::format::{format_count, format_duration};
use crate::ui::style::TextStyle;
use crate::ui::table::TextTable;

/// The other screen, without a cursor, where a long line is cut and not continued; and back.
const OPEN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const CLOSE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";

/// From the top; and what was there below is gone.
const HOME: &[u8] = b"\x1b[H";
const REST: &[u8] = b"\x1b[J";

/// Lines of a terminal that does not report how many it has.
const LINES: usize = 24;

/// What is to be seen.
pub struct ScreenContent<'a> {
    /// The mount.
    pub mountpoint: &'a Path,
    /// What happened in it.
    pub figures: &'a IntervalFigures,
    /// The remotes of its volume.
    pub remotes: &'a [RemoteFigures],
}

/// The terminal, until dropped.
pub struct StatsScreen<'a> {
    ui: &'a UserInterface,
    /// How what is typed was taken before; none where nothing can be typed.
    typing: Option<Termios>,
}

impl<'a> StatsScreen<'a> {
    /// Takes the terminal.
    pub fn open_terminal(ui: &'a UserInterface) -> Result<Self> {
        if !ui.is_output_terminal() {
            return Err(CliError::usage_error("standard output is not a terminal", "leave out --tui"));
        }
        // It exists before the screen is opened: if that fails, dropping it restores how keys are taken.
        let screen = Self { ui, typing: enable_key_input() };
        ui.write_bytes(OPEN)?;
        Ok(screen)
    }

    /// Waits for a time at most. Returns whether the user asked to leave meanwhile.
    pub fn wait_for_quit(&self, at_most: Duration) -> bool {
        // Standard input is no terminal: the screen is left with Ctrl-C.
        if self.typing.is_none() {
            std::thread::sleep(at_most);
            return false;
        }
        // Callers wait for small parts of a second.
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut polled = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
        let mut typed = [0; 64];
        match poll(&mut polled, Some(&timeout)) {
            Ok(1..) => match rustix::io::read(stdin(), &mut typed) {
                // Nobody types any more: the terminal is gone.
                Ok(0) => true,
                Ok(len) => typed.iter().take(len).any(|key| matches!(key, b'q' | b'Q')),
                // `INTR` is a signal, which the caller looks for; after any other error nothing can be typed.
                Err(error) => error != rustix::io::Errno::INTR,
            },
            // A signal; the caller checks for that.
            Ok(0) | Err(_) => false,
        }
    }

    /// Draws what happened.
    pub fn draw_content(&self, shown: &ScreenContent<'_>) -> Result<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_row));
        let lines = size.ok().filter(|lines| *lines > 0).unwrap_or(LINES);
        self.ui.write_bytes(HOME)?;
        // Asked for each time: the window may have another size now.
        let columns = self.ui.output_columns().unwrap_or(usize::MAX);
        let mut drawn = format_screen(self.ui.style, shown, columns);
        // A line feed on the last line would scroll the screen.
        drawn.truncate(lines.saturating_sub(1));
        for line in drawn {
            // The last figures may have been longer: what is left of the line is erased.
            self.ui.print_line(format!("{line}\x1b[K"))?;
        }
        self.ui.write_bytes(REST)?;
        self.ui.flush_output()
    }
}

impl Drop for StatsScreen<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.ui.write_bytes(CLOSE).and_then(|()| self.ui.flush_output());
        if let Some(before) = &self.typing {
            // `Flush` drops keys that were typed and not read: the shell would take them for a command.
            let _ = tcsetattr(stdin(), OptionalActions::Flush, before);
        }
    }
}

/// Each key comes at once and is not shown; Ctrl-C stays a signal. Returns the previous settings.
fn enable_key_input() -> Option<Termios> {
    let before = tcgetattr(stdin()).ok()?;
    let mut keys = before.clone();
    keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    tcsetattr(stdin(), OptionalActions::Now, &keys).ok()?;
    Some(before)
}

/// What is drawn, line by line.
fn format_screen(style: TextStyle, shown: &ScreenContent<'_>, columns: usize) -> Vec<String> {
    const WAY_OUT: &str = "   q: leave";
    let figures = shown.figures;
    let path = format_path(shown.mountpoint.as_os_str().as_encoded_bytes());
    let title =
        format!("vellum {}", keep_end(&path, columns.saturating_sub("vellum ".len() + WAY_OUT.len())));
    let mut lines = vec![style.paint_bold(&title) + &style.paint_dim(WAY_OUT), String::new()];
    for group in mount_groups(figures).into_iter().chain(store_groups(figures)) {
        lines.extend(group.format_lines(columns));
    }
    for remote in shown.remotes {
        lines.extend(FigureGroup::new("remote", remote.describe()).format_lines(columns));
    }
    lines.push(String::new());
    let mut table = TextTable::new([1, 2]);
    let head = ["", "a second", "took"];
    table.add_row(head.map(|word| style.paint_dim(word)));
    let mut row = |name: &str, rate: OperationRate| {
        table.add_row([name.into(), format_short_rate(rate.rate), format_short_latency(rate)])
    };
    row("transactions", figures.transactions);
    row("object get", figures.get);
    row("object put", figures.put);
    row("object delete", figures.delete);
    row("requests", figures.fuse);
    for (kind, rate) in &figures.operations {
        row(&format!("  {kind}"), *rate);
    }
    lines.extend(table.format_lines());
    lines
}

/// What the process and the mount do.
fn mount_groups(figures: &IntervalFigures) -> Vec<FigureGroup> {
    let hits = figures.cache_hits.map_or("-".into(), |hits| format!("{hits:.1} %"));
    let bytes = |bytes: u64| format_short_bytes(bytes as f64);
    vec![
        FigureGroup::new(
            "process",
            [
                format!("cpu {:.1} %", figures.cpu_percent),
                format!("memory {}", bytes(figures.memory)),
                format!("write log {}", bytes(figures.log)),
                format!("metadata {}", bytes(figures.buffer)),
            ],
        ),
        FigureGroup::new(
            "mount",
            [
                format!("read {}/s", format_short_bytes(figures.read)),
                format!("write {}/s", format_short_bytes(figures.written)),
            ],
        ),
        FigureGroup::new("cache", [format!("hits {hits}"), format!("holds {}", bytes(figures.cache))]),
    ]
}

/// What goes to the store and comes from it.
fn store_groups(figures: &IntervalFigures) -> Vec<FigureGroup> {
    let bytes = |bytes: u64| format_short_bytes(bytes as f64);
    let mut groups = vec![FigureGroup::new(
        "store",
        [
            format!("received {}/s", format_short_bytes(figures.received)),
            format!("sent {}/s", format_short_bytes(figures.sent)),
        ],
    )];
    if let Some(cache) = &figures.disk_cache {
        let mut shown = vec![format!("{} of {}", bytes(cache.bytes), bytes(cache.limit))];
        shown.push(format!("names {} of {}", bytes(cache.nodes.bytes), bytes(cache.nodes.limit)));
        shown.push(format!("pinned {}", bytes(cache.pinned)));
        shown.extend(cache.bypassed.then(|| "does not answer".to_owned()));
        groups.push(FigureGroup::new("disk", shown));
    }
    if let Some(hydration) = &figures.hydration {
        // Rounding must not show 100 % before the end.
        let percent = hydration.fetched.saturating_mul(100) / hydration.wanted.max(1);
        let progress = format!("{} of {}", bytes(hydration.fetched), bytes(hydration.wanted));
        groups.push(FigureGroup::new("hydrate", [progress, format!("{percent} %")]));
    }
    if figures.unpublished_seconds > 0 {
        let age = format_duration(Duration::from_secs(figures.unpublished_seconds));
        groups.push(FigureGroup::new("upload", [format!("not in the store for {age}")]));
    }
    if let Some(trash) = &figures.trash {
        let entries = format_count(trash.entries, "entry");
        groups.push(FigureGroup::new("trash", [entries, bytes(trash.bytes)]));
    }
    if let Some(service) = &figures.service {
        let rate = |name: &str, rate: f64| format!("{name} {}/s", format_short_rate(rate));
        groups.push(FigureGroup::new(
            "service",
            [
                rate("foreground", service.foreground),
                rate("read-ahead", service.read_ahead),
                rate("upload", service.upload),
                rate("upkeep", service.upkeep),
            ],
        ));
        groups.push(FigureGroup::new(
            "",
            [
                format!("under way {}", service.under_way),
                rate("retries", service.retries),
                rate("sent twice", service.hedges),
                format!("discarded {}/s", format_short_bytes(service.discarded)),
            ],
        ));
    }
    groups
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::super::figures::{
        DiskCacheFigures, HydrationFigures, NodeCacheFigures, ServiceFigures, TrashHolding,
    };
    use super::*;

    fn draw(
        mountpoint: &str,
        figures: &IntervalFigures,
        remotes: &[RemoteFigures],
        columns: usize,
    ) -> Vec<String> {
        let shown = ScreenContent { mountpoint: Path::new(mountpoint), figures, remotes };
        format_screen(TextStyle::default(), &shown, columns)
    }

    #[test]
    fn every_figure_has_its_place() {
        let rate = |rate, latency_ms| OperationRate { rate, latency_ms };
        let figures = IntervalFigures {
            cpu_percent: 12.5,
            memory: 64 << 20,
            read: 4096.0,
            transactions: rate(20.0, 0.5),
            cache_hits: Some(75.0),
            put: rate(3.0, 40.0),
            fuse: rate(1500.0, 0.012),
            operations: vec![("read".into(), rate(1000.0, 0.01)), ("lookup".into(), rate(500.0, 0.016))],
            ..IntervalFigures::default()
        };
        let lines = draw("/mnt/a\x1b[2J", &figures, &[], 100);
        assert_eq!(lines.len(), 15, "{lines:#?}");
        assert!(lines[0].starts_with("vellum /mnt/a\\") && lines[0].ends_with("q: leave"), "{}", lines[0]);
        assert_eq!(lines[2], "process  cpu 12.5 %   memory 64M   write log 0   metadata 0");
        assert_eq!(lines[3], "mount    read 4.0K/s   write 0/s");
        assert_eq!(lines[4], "cache    hits 75.0 %   holds 0");
        let columns = |line: &String| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(columns(&lines[8]), ["transactions", "20", "500u"]);
        assert_eq!(columns(&lines[10]), ["object", "put", "3", "40m"]);
        assert_eq!(columns(&lines[12]), ["requests", "1.5k", "12u"]);
        assert_eq!(columns(&lines[13]), ["read", "1.0k", "10u"]);
    }

    #[test]
    fn figures_of_services_and_remotes_stand_whole_on_a_narrow_terminal() {
        let figures = IntervalFigures::default();
        let service =
            ServiceFigures { foreground: 12.0, under_way: 3, discarded: 2048.0, ..Default::default() };
        let remote = IntervalFigures {
            service: Some(service),
            unpublished_seconds: 7,
            disk_cache: Some(DiskCacheFigures {
                bytes: 3 << 30,
                limit: 10 << 30,
                pinned: 1 << 20,
                nodes: NodeCacheFigures { bytes: 5 << 20, limit: 2 << 30 },
                bypassed: false,
            }),
            trash: Some(TrashHolding { entries: 12, bytes: 5 << 20 }),
            hydration: Some(HydrationFigures { fetched: 999 << 20, wanted: 1000 << 20 }),
            ..figures
        };
        let lines = draw("/mnt", &remote, &[], 100);
        assert_eq!(lines[6], "disk     3.0G of 10G   names 5.0M of 2.0G   pinned 1.0M");
        assert_eq!(lines[7], "hydrate  999M of 1.0G   99 %");
        assert_eq!(lines[8], "upload   not in the store for 7 s");
        assert_eq!(lines[9], "trash    12 entries   5.0M");
        assert_eq!(lines[10], "service  foreground 12/s   read-ahead 0/s   upload 0/s   upkeep 0/s");
        assert_eq!(lines[11], "         under way 3   retries 0/s   sent twice 0/s   discarded 2.0K/s");
        // Nothing but the terminal's own sequences drives it.
        assert!(lines.iter().all(|line| !line.contains('\x1b')), "{lines:#?}");
        let hub = RemoteFigures {
            name: "hub".into(),
            apart: Some((12, 3)),
            seen: Some(0),
            pushing: Some(Duration::from_secs(75)),
            pulling: None,
        };
        let new = RemoteFigures { name: "new".into(), ..RemoteFigures::default() };
        let path = format!("/mnt/{}", "long/".repeat(30));
        let lines = draw(&path, &remote, &[hub, new], 60);
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:#?}");
        assert!(lines[0].starts_with("vellum …") && lines[0].ends_with("long/   q: leave"), "{}", lines[0]);
        let at = lines.iter().position(|line| line.starts_with("service")).unwrap();
        assert_eq!(
            lines[at..at + 7],
            [
                "service  foreground 12/s   read-ahead 0/s   upload 0/s",
                "         upkeep 0/s",
                "         under way 3   retries 0/s   sent twice 0/s",
                "         discarded 2.0K/s",
                "remote   hub   pushing for 1:15 min   12 to push   3 to pull",
                &format!(
                    "         seen {}",
                    crate::ui::format::format_age(vellum_types::UnixTime { secs: 0, nanos: 0 })
                ),
                "remote   new   never seen",
            ]
        );
    }
}
