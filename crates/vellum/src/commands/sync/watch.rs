//! `vellum sync --watch`: again, whenever something changes.
//!
//! Invariant: a side is watched before it is listed, so that no change falls between two runs; an error is reported,
//! and the next run tries again. Ctrl-C lets the run under way end. Deliberately absent: what a run does.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vellum_host::beneath::HeldDir;
use vellum_sync::SyncError;
use vellum_sync::ends::SyncSide;
use vellum_sync::rules::SyncFilters;
use vellum_sync::watch::{SettleTimer, WatchCoverage, WatchEvent, WatchPace, WatchedTree};

use super::args::Args;
use super::ends::EndpointArg;
use super::{objects, worktree_file_path};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;

/// Longest wait before the program checks whether to stop: a signal may come just before the wait.
const LOOK_UP: Duration = Duration::from_millis(500);
/// After a failure it is tried again, soon at first, and at last this seldom.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// First wait after a failure.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Again and again.
#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// Keep running, and synchronise whenever something changes; Ctrl-C ends it
    #[arg(long, conflicts_with = "dry_run")]
    pub watch: bool,
    /// Wait until nothing has changed for SECONDS
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "watch",
        default_value_t = 0.2,
        hide_default_value = true
    )]
    pub settle: f64,
    /// Check what cannot be watched (other hosts) every SECONDS
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "watch",
        default_value_t = 10.0,
        hide_default_value = true
    )]
    pub poll: f64,
}

/// Synchronises until the user asks to stop.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let mut watch = SyncWatch::new(args, context)?;
    let stop_flag = interrupt::install_signal_handlers();
    interrupt::finish_before_stop();
    let run_once: fn(&Args, &CommandContext, bool) -> Result<CommandOutcome> =
        if objects::names_service(args) { objects::run_once } else { super::run_once };
    let mut retry = RETRY_MIN;
    while !interrupt::is_stop_requested(&stop_flag) {
        // Watched first, then listed: a change in between is seen by both, and one later by the watch.
        let outcome = watch.refresh_watches(context).and_then(|()| run_once(args, context, watch.ran));
        let failed = match outcome {
            Ok(CommandOutcome::Done) => false,
            // What could not be done may be possible later.
            Ok(_) => true,
            // Nobody can mend what was typed while this runs.
            Err(error) if error.kind() == vellum_types::ErrorKind::Usage && !watch.ran => return Err(error),
            // Nobody reads any more what later runs would report.
            Err(error) if error.is_broken_pipe() => return Err(error),
            Err(error) => {
                context.ui.print_error(&error);
                true
            }
        };
        watch.ran = true;
        // The wait that follows may be long, and a reader of the output must see this run before it.
        context.ui.flush_output()?;
        // The one run has done everything that there will ever be to do.
        if watch.trees.is_empty() && watch.poll.is_none() {
            return Err(CliError::usage_error("a snapshot never changes", "leave --watch out"));
        }
        retry = if failed { (retry * 2).min(RETRY_MAX) } else { RETRY_MIN };
        watch.wait_for_changes(failed.then_some(retry), &|| interrupt::is_stop_requested(&stop_flag))?;
    }
    context.ui.print_note("Stopped watching")?;
    Ok(CommandOutcome::Done)
}

/// What is watched, and what is looked at from time to time.
struct SyncWatch {
    trees: Vec<WatchedSource>,
    /// How often to look at what cannot be watched, if there is such a thing.
    poll: Option<Duration>,
    every: Duration,
    settle: SettleTimer,
    ran: bool,
    is_reported: bool,
}

impl SyncWatch {
    fn new(args: &Args, context: &CommandContext) -> Result<Self> {
        let quiet = parse_duration(args.watch.settle)?;
        let every = parse_duration(args.watch.poll)?;
        let mut pace = WatchPace { quiet, ..WatchPace::default() };
        // Without this, a long --settle would be cut off by the longest wait, and a run would begin in the middle
        // of changes.
        pace.longest = pace.longest.max(quiet);
        let excluded = args.delete.delete_excluded;
        let filters = Arc::new(args.rules.load_filters(context, args.preserve.recursive, excluded)?);
        let mut watch = Self {
            trees: Vec::new(),
            poll: None,
            every,
            settle: SettleTimer::new(pace),
            ran: false,
            is_reported: false,
        };
        let ends = match (args.two_way.two_way, args.ends.split_last()) {
            (true, _) => args.ends.as_slice(),
            (false, Some((_, sources))) => sources,
            (false, None) => &[],
        };
        for typed in ends {
            match EndpointArg::parse_endpoint(typed, context) {
                EndpointArg::Path(path) => {
                    watch.add_source(&context.resolve_local_path(Path::new(&path)), &filters)?
                }
                EndpointArg::Volume { directory, snapshot: None, path } => {
                    watch.add_source(
                        &context.resolve_local_path(Path::new(&worktree_file_path(&directory, &path))),
                        &filters,
                    )?;
                }
                // It never changes.
                EndpointArg::Volume { snapshot: Some(_), .. } => {}
                EndpointArg::Host { .. } => watch.poll = Some(every),
            }
        }
        Ok(watch)
    }

    fn add_source(&mut self, path: &Path, filters: &Arc<SyncFilters>) -> Result<()> {
        // A single file is watched with its directory; what is not there yet, too.
        let dir = if path.is_dir() {
            path.to_path_buf()
        } else {
            path.parent().map(PathBuf::from).unwrap_or_default()
        };
        self.trees.push(WatchedSource::open(dir, filters)?);
        Ok(())
    }

    /// Watches what there is now.
    fn refresh_watches(&mut self, context: &CommandContext) -> Result<()> {
        for source in &mut self.trees {
            source.reopen_if_replaced()?;
            if source.tree.refresh_watches()? == WatchCoverage::Partial {
                self.poll = Some(self.every);
                if !std::mem::replace(&mut self.is_reported, true) {
                    context.ui.print_warning(format!(
                        "the system has no room to watch all directories, so they are looked at every {} s; \
                         sysctl fs.inotify.max_user_watches makes room",
                        self.every.as_secs_f64()
                    ))?;
                }
            }
        }
        Ok(())
    }

    /// Waits until something is to be done: something changed and there was quiet, it is time to look, or to try again.
    fn wait_for_changes(&mut self, retry: Option<Duration>, stop: &dyn Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        // A moment, and no rest of a wait: changes that wake the loop must not put off the next look.
        let due = [self.poll, retry].into_iter().flatten().min().map(|wait| start + wait);
        loop {
            let now = Instant::now();
            let quiet = self.settle.remaining_wait(now);
            let rest = due.map(|due| due.saturating_duration_since(now));
            if stop() || quiet == Some(Duration::ZERO) || rest == Some(Duration::ZERO) {
                // Whatever changed until now is seen by the run that follows.
                self.settle.clear_events();
                return Ok(());
            }
            let wait = [quiet, rest, Some(LOOK_UP)].into_iter().flatten().min().unwrap_or(LOOK_UP);
            self.sleep_until_event(wait)?;
            for source in &mut self.trees {
                if source.tree.read_events()? != WatchEvent::Nothing {
                    self.settle.record_event(Instant::now());
                }
            }
        }
    }

    fn sleep_until_event(&self, wait: Duration) -> Result<()> {
        let mut fds: Vec<PollFd<'_>> = self
            .trees
            .iter()
            .map(|source| PollFd::from_borrowed_fd(source.tree.as_fd(), PollFlags::IN))
            .collect();
        // A moment more: to wake too early is to go round for nothing.
        let wait = wait + Duration::from_millis(1);
        let wait = Timespec::try_from(wait)
            .map_err(|_| CliError::usage_error("the number is too large", "--poll 10"))?;
        match poll(&mut fds, Some(&wait)) {
            // A signal is no failure: the caller looks whether it asks to stop.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(CliError::io_error("wait for", "changes")(errno.into())),
        }
    }
}

/// A directory that is watched, and the path by which it was named.
struct WatchedSource {
    dir: PathBuf,
    filters: Arc<SyncFilters>,
    root: HeldDir,
    tree: WatchedTree,
}

impl WatchedSource {
    fn open(dir: PathBuf, filters: &Arc<SyncFilters>) -> Result<Self> {
        let root = HeldDir::open_root(&dir).map_err(SyncError::from)?;
        let rules = filters
            .create_filter(SyncSide::Source, dir.as_os_str().as_encoded_bytes())
            .map_err(SyncError::from)?;
        let tree = WatchedTree::new(root.clone(), rules)?;
        Ok(Self { dir, filters: Arc::clone(filters), root, tree })
    }

    /// Watches the directory that has the path now, if it is another one.
    fn reopen_if_replaced(&mut self) -> Result<()> {
        let now = HeldDir::open_root(&self.dir).and_then(|dir| dir.stat_self()).map_err(SyncError::from)?;
        // A run lists what has the path. The directory that had it before reports no changes of that.
        if !now.is_same_file(&self.root.stat_self().map_err(SyncError::from)?) {
            *self = Self::open(self.dir.clone(), &self.filters)?;
        }
        Ok(())
    }
}

fn parse_duration(typed: f64) -> Result<Duration> {
    /// Longest wait, seconds: a day.
    const LONGEST: f64 = 86_400.0;
    // The range excludes NaN, too, of which no duration can be made.
    let fits = (0.0..=LONGEST).contains(&typed);
    let usage = || {
        CliError::usage_error(
            format!("'{typed}' is not a number of seconds to wait"),
            "for example --settle 0.5",
        )
    };
    fits.then(|| Duration::from_secs_f64(typed)).ok_or_else(usage)
}
