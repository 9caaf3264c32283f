//! `vellum sync`: one directory made what another one is, here, on another host, or in a snapshot.

mod args;
mod chmod;
mod ends;
mod itemize;
mod meaning;
mod patience;
mod profile;
mod remote;
mod report;
mod rules;
mod snapshot;
mod two_way;
mod watch;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use vellum_sync::SyncError;
use vellum_sync::listing::{EntryId, Listing};
use vellum_sync::options::{Options, When};
use vellum_sync::plan::{Plan, unsettled};
use vellum_sync::receive::{Job, Report};
use vellum_sync::remote::Remote;
use vellum_sync::rules::Filters;
use vellum_sync::source::{End, Side, Source, Wish};
use vellum_sync::two_way::Lines;
use vellum_volume::Meter;
use vellum_volume::tree::show;

pub use args::Args;

use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::ui::progress::Task;
use ends::{From, Into, Typed};
use patience::Patience;
use report::Run;

/// What to do after a stop.
const AGAIN: &str = "run the command again: it goes on where it stopped";

const TASK: Task = Task { first: "Listing", verb: "Synchronising", item: "step" };

/// What a run found on both sides, what it planned, and what came of it if it was carried out.
type Worked = (Listing, Listing, Plan, Option<Report>);

/// The command line with the options of the profile that was named, if one was.
pub fn with_profile(args: &Args, typed: impl Iterator<Item = OsString>) -> Result<Option<Vec<OsString>>> {
    args.show.profile.as_ref().map(|name| profile::expand(name, typed)).transpose()
}

/// Synchronises.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    match (args.effort.server, args.watch.watch) {
        (true, _) => remote::be_server(),
        (false, true) => watch::run(args, context),
        (false, false) => once(args, context),
    }
}

/// One run.
fn once(args: &Args, context: &Context) -> Result<Outcome> {
    let Some((destination, sources)) = args.ends.split_last().filter(|(_, sources)| !sources.is_empty())
    else {
        return Err(CliError::usage("a source and a destination are needed", "vellum sync SRC DST"));
    };
    let options = Arc::new(meaning::options(args)?);
    let filters = args.rules.filters(context, options.preserve.recursive, args.delete.delete_excluded)?;
    let filters = Arc::new(filters);
    if args.two_way.two_way {
        return two_way::run(args, &options, &filters, context);
    }
    if sources.len() > 1
        && options.delete.when != When::Never
        && sources.iter().any(|s| s.as_bytes().ends_with(b"/"))
    {
        let message = "--delete of what several sources together do not have is not there";
        return Err(CliError::usage(message, "name one source, or leave out the slashes at their ends"));
    }
    let mut outcome = Outcome::Done;
    for source in sources {
        let pair = Pair::new(source, destination, args, context)?;
        let options = pair.adapted(&options);
        outcome = outcome.max(pair.run(args, &options, &filters, context)?);
    }
    Ok(outcome)
}

/// One source and where it goes.
struct Pair {
    source: Box<dyn Source>,
    /// The name under which it goes into the destination, if it is a directory that was named itself.
    top: Vec<u8>,
    path: Option<std::path::PathBuf>,
    into: Into,
    words: String,
    /// The other end lies in this one: device and inode of what is not entered.
    avoid: [Option<(u64, u64)>; 2],
    /// The end that is on another host, and whether one file is all there is.
    remote: Option<Remote>,
    is_single: bool,
}

impl Pair {
    fn new(source: &OsString, destination: &OsString, args: &Args, context: &Context) -> Result<Self> {
        let from = match Typed::parse(source, context) {
            Typed::Path(path) => ends::from_path(context, &path)?,
            Typed::Host { host, path } => remote::from_host(&host, &path, args)?,
            Typed::Volume { directory, snapshot: Some(snapshot), path } => {
                snapshot::source(context, &directory, &snapshot, &path)?
            }
            Typed::Volume { directory, snapshot: None, path } => {
                ends::from_path(context, &in_worktree(&directory, &path))?
            }
        };
        let mut into = match Typed::parse(destination, context) {
            Typed::Path(path) => ends::into_path(context, &path, &from)?,
            Typed::Host { .. } if from.remote.is_some() => {
                let message = "one of the two ends has to be on this host";
                return Err(CliError::usage(message, "run the command on one of the other hosts"));
            }
            Typed::Host { host, path } => remote::into_host(&host, &path, &from, args)?,
            Typed::Volume { snapshot: Some(snapshot), .. } => {
                let message = format!("the snapshot {snapshot} never changes");
                return Err(CliError::usage(message, "a worktree is written to: VOLUME:/PATH"));
            }
            Typed::Volume { directory, snapshot: None, path } => {
                ends::into_path(context, &in_worktree(&directory, &path), &from)?
            }
        };
        let words = format!("{} goes into {}", from.words, into.words);
        let avoid = Self::nesting(&from, &mut into, destination, context)?;
        let top = from.name.clone().filter(|_| from.is_dir).unwrap_or_default();
        let shown = into.shown.clone().unwrap_or_default();
        let remote = from.remote.clone().or_else(|| into.remote.clone());
        let is_single = !from.is_dir;
        Ok(Self { source: (from.open)(&shown), top, path: from.path, into, words, avoid, remote, is_single })
    }

    /// Refuses one directory as both ends; of two that lie one in the other, the inner one is not entered.
    fn nesting(
        from: &From,
        into: &mut Into,
        typed: &OsString,
        context: &Context,
    ) -> Result<[Option<(u64, u64)>; 2]> {
        use std::os::unix::fs::MetadataExt;
        let Some(source) = from.path.as_ref().filter(|_| into.remote.is_none()) else {
            return Ok([None, None]);
        };
        let base = context.local_path(std::path::Path::new(typed)).canonicalize().ok();
        let target = into.path.canonicalize().ok();
        if target.as_ref() == Some(source) {
            let shown = show(&ends::typed_bytes(typed));
            return Err(CliError::usage(format!("source and destination are one directory, '{shown}'"), ""));
        }
        let number = |path: &std::path::Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        let inner = [base, target.clone()]
            .into_iter()
            .flatten()
            .find(|path| path.starts_with(source) && path != source);
        let avoided = inner.as_deref().and_then(number);
        let outer = target.filter(|target| source.starts_with(target)).and_then(|_| number(source));
        Ok([avoided, outer])
    }

    fn run(
        &self,
        args: &Args,
        options: &Arc<Options>,
        filters: &Arc<Filters>,
        context: &Context,
    ) -> Result<Outcome> {
        let loud = args.show.progress
            || args.show.partial_progress
            || args.show.info.iter().any(|words| words.split(',').any(|word| word.starts_with("progress")));
        let done = context.watch_loud(TASK, loud, |meter| self.persist(args, options, filters, meter));
        let (from, to, plan, done) = done.map_err(|error| CliError::from(error).or_resume(AGAIN))?;
        let run = Run { words: self.words.clone(), from: &from, to: &to, plan: &plan, done: done.as_ref() };
        let stopped = done.as_ref().is_some_and(|done| done.stopped);
        // A failure is an object of its own.
        if stopped && context.ui.json() {
            return Err(CliError::Stopped { resume: AGAIN.into() });
        }
        let outcome = run.tell(args, context)?;
        if stopped { Err(CliError::Stopped { resume: AGAIN.into() }) } else { Ok(outcome) }
    }

    /// The options as they are for these ends.
    fn adapted(&self, options: &Arc<Options>) -> Arc<Options> {
        match &self.remote {
            Some(_) => Arc::new(remote::adapted(options, self.is_single)),
            None => Arc::clone(options),
        }
    }

    /// Works, and again from the start if the connection was lost: what arrived is there, and not sent again.
    fn persist(
        &self,
        args: &Args,
        options: &Arc<Options>,
        filters: &Arc<Filters>,
        meter: &Meter,
    ) -> vellum_sync::Result<Worked> {
        let mut patience = Patience::new(options);
        loop {
            let outcome = self.work(args, options, filters, meter);
            let lines = self.remote.as_ref().map_or_else(Lines::default, |remote| Lines {
                cuts: remote.cuts(),
                is_lost: remote.is_lost(),
            });
            let failed = matches!(&outcome, Ok((.., Some(report))) if !report.problems.is_empty());
            if meter.stopped() || !patience.again(lines, failed, meter) {
                return outcome;
            }
        }
    }

    fn work(
        &self,
        args: &Args,
        options: &Arc<Options>,
        filters: &Arc<Filters>,
        meter: &Meter,
    ) -> vellum_sync::Result<Worked> {
        let source = &*self.source;
        // A run that was cut off may have made it.
        let is_missing = self.into.is_new && !self.into.path.is_dir();
        let present = if is_missing { None } else { Some(self.into.open()?) };
        let (mut from, mut to) = std::thread::scope(|scope| {
            let to = present.as_ref().map(|present| {
                scope.spawn(|| present.list(&self.wish(Side::Destination, options, filters)?, meter))
            });
            let from = self.list_source(options, filters, meter);
            let to =
                to.map_or_else(|| Ok(Into::nothing()), |to| to.join().unwrap_or(Err(SyncError::Stopped)));
            vellum_sync::Result::Ok((from?, to?))
        })?;
        let (ours, theirs) = unsettled(&from, &to, options);
        settle(source, &mut from, &ours, meter)?;
        if let Some(present) = &present {
            settle(&**present, &mut to, &theirs, meter)?;
        }
        let plan = Plan::new(&from, &to, options);
        if args.show.dry_run {
            return Ok((from, to, plan, None));
        }
        if let Some(refusal) = &plan.refusal {
            return Err(SyncError::Refused(refusal.clone()));
        }
        let target = match present {
            Some(present) => present,
            None => self.into.ready()?,
        };
        let job = Job { plan: &plan, source, from: &from, to: &to, options };
        let report = target.carry_out(&job, meter)?;
        Ok((from, to, plan, Some(report)))
    }

    fn list_source(
        &self,
        options: &Arc<Options>,
        filters: &Arc<Filters>,
        meter: &Meter,
    ) -> vellum_sync::Result<Listing> {
        self.source.list(&self.wish(Side::Source, options, filters)?, meter)
    }

    fn wish(&self, side: Side, options: &Arc<Options>, filters: &Arc<Filters>) -> vellum_sync::Result<Wish> {
        let root = match side {
            Side::Source => self.path.as_ref().map(|path| path.as_os_str().as_bytes()).unwrap_or_default(),
            Side::Destination => self.into.path.as_os_str().as_bytes(),
        };
        let [source, destination] = self.avoid;
        Ok(Wish {
            side,
            options: options.clone(),
            rules: filters.judge(side, root)?,
            top: self.top.clone(),
            avoid: if side == Side::Source { source } else { destination },
            owners: false,
        })
    }
}

/// Notes what files hash to of which the plan has to know it.
fn settle(
    end: &(impl End + ?Sized),
    listing: &mut Listing,
    files: &[EntryId],
    meter: &Meter,
) -> vellum_sync::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    for (id, digest) in files.iter().zip(end.digest(listing, files, meter)?) {
        if let Some(digest) = digest {
            listing.set_digest(*id, digest);
        }
    }
    Ok(())
}

/// A path in a worktree, from its root.
fn in_worktree(directory: &std::path::Path, path: &OsString) -> OsString {
    let mut typed = directory.as_os_str().to_os_string();
    typed.push("/");
    typed.push(path.to_string_lossy().trim_start_matches('/'));
    typed
}
