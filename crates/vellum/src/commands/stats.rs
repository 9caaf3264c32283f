//! `vellum stats`: what a mount does now, a line a second.

mod figures;
mod layout;
mod remotes;
mod screen;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vellum_host::escape::format_path;
use vellum_host::exposition;

use crate::context::CommandContext;
use crate::context::mounted::find_mountpoint_above;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;
use crate::ui::UserInterface;
use figures::{IntervalFigures, MetricsSample};
use remotes::RemoteWatch;
use screen::{ScreenContent, StatsScreen};

/// Show what a mount does: processor and memory, requests, metadata, caches, objects
///
/// Prints a line for each interval until Ctrl-C, or until the mount ends. Times are averages per request.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount [default: the one of the current directory]
    mountpoint: Option<PathBuf>,
    /// Seconds between two lines
    #[arg(long, value_name = "S", default_value = "1", value_parser = super::profile::parse_interval)]
    interval: f64,
    /// Stop after N lines; 0: never
    #[arg(long, value_name = "N", default_value_t = 0)]
    count: u64,
    /// Use the whole screen, and show every kind of request; 'q' quits
    #[arg(long, conflicts_with = "json")]
    tui: bool,
}

/// Shortest interval, seconds: below this, asking is most of what is seen.
const INTERVAL_MIN: f64 = 0.02;

/// Lines between two heads.
const HEAD_EVERY: u64 = 20;

/// How often the program checks whether the user asked to stop.
const TICK: Duration = Duration::from_millis(50);

/// Shows them.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let named = args.mountpoint.as_ref().map(|path| context.resolve_local_path(path));
    let mountpoint = match named {
        Some(mountpoint) => mountpoint,
        // Outside of all mounts, the error names the current directory.
        None => find_mountpoint_above(&context.cwd)?.unwrap_or_else(|| context.cwd.clone()),
    };
    let every = Duration::from_secs_f64(args.interval.max(INTERVAL_MIN));
    // Before the screen is taken over: the error about a missing mount must stay visible.
    let mut before = read_metrics_sample(&mountpoint)?;
    let stop_flag = interrupt::install_signal_handlers();
    let screen = if args.tui { Some(StatsScreen::open_terminal(&context.ui)?) } else { None };
    let remotes = args.tui.then(|| RemoteWatch::start(&mountpoint));
    let mut lines = 0;
    while !interrupt::is_stop_requested(&stop_flag) && (args.count == 0 || lines < args.count) {
        let until = before.taken + every;
        let mut leaves = false;
        // The wait is cut into ticks: a signal during a sleep does not end it, because the standard library sleeps
        // on.
        while Instant::now() < until && !leaves {
            let tick = TICK.min(until.saturating_duration_since(Instant::now()));
            let left = screen.as_ref().map(|screen| screen.wait_for_quit(tick));
            // Without a screen there are no keys to wait for.
            if left.is_none() {
                std::thread::sleep(tick);
            }
            leaves = left == Some(true) || interrupt::is_stop_requested(&stop_flag);
        }
        if leaves {
            break;
        }
        // That a mount has ended is no failure of this command.
        let Ok(now) = read_metrics_sample(&mountpoint) else {
            // The screen is closed first: the note would be lost with it.
            drop(screen);
            context.ui.print_note(format!(
                "{} is not mounted any more",
                format_path(mountpoint.as_os_str().as_bytes())
            ))?;
            break;
        };
        let figures = IntervalFigures::from_samples(&before, &now);
        match &screen {
            Some(screen) => {
                let remotes = remotes.as_ref().map(RemoteWatch::read_figures).unwrap_or_default();
                let shown = ScreenContent { mountpoint: &mountpoint, figures: &figures, remotes: &remotes };
                screen.draw_content(&shown)?;
            }
            None => print_figures(&context.ui, &figures, lines)?,
        }
        (before, lines) = (now, lines + 1);
    }
    Ok(CommandOutcome::Done)
}

fn read_metrics_sample(mountpoint: &Path) -> Result<MetricsSample> {
    let path = mountpoint.join(".vellum/stats");
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            let message = format!("{} is not a mount", mountpoint.display());
            CliError::usage_error(message, "'vellum mounts' lists them")
        }
        _ => CliError::io_error("read", path.display().to_string())(error),
    })?;
    Ok(MetricsSample { taken: Instant::now(), samples: exposition::parse_samples(&text) })
}

fn print_figures(ui: &UserInterface, figures: &IntervalFigures, line: u64) -> Result<()> {
    if ui.is_json() {
        ui.print_json(figures)?;
        // Whoever reads from a pipe gets each interval when it ends.
        return ui.flush_output();
    }
    if line.is_multiple_of(HEAD_EVERY) {
        for head in figures::HEAD {
            ui.print_line(ui.style.paint_dim(head))?;
        }
    }
    ui.print_line(figures.format_line())?;
    ui.flush_output()
}
