//! `vellum sync`: one directory made what another one is, here, on another host, or in a snapshot.

mod args;
mod chmod;
mod ends;
mod itemize;
mod meaning;
mod profile;
mod report;
mod rules;
mod snapshot;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use vellum_sync::SyncError;
use vellum_sync::listing::{EntryId, Listing};
use vellum_sync::options::{Options, When};
use vellum_sync::plan::{Plan, unsettled};
use vellum_sync::receive::{Destination, Job, Report};
use vellum_sync::rules::Filters;
use vellum_sync::source::{End, Side, Source, Wish};
use vellum_volume::Meter;
use vellum_volume::tree::show;

pub use args::Args;

use crate::context::Context;
use crate::error::{CliError, Outcome, Result};
use crate::ui::progress::Task;
use ends::{From, Into, Typed};
use report::Run;

const TASK: Task = Task { first: "Listing", verb: "Synchronising", item: "step" };

/// The command line with the options of the profile that was named, if one was.
pub fn with_profile(args: &Args, typed: impl Iterator<Item = OsString>) -> Result<Option<Vec<OsString>>> {
    args.show.profile.as_ref().map(|name| profile::expand(name, typed)).transpose()
}

/// Synchronises.
pub fn run(args: &Args, context: &Context) -> Result<Outcome> {
    let Some((destination, sources)) = args.ends.split_last().filter(|(_, sources)| !sources.is_empty())
    else {
        return Err(CliError::usage("a source and a destination are needed", "vellum sync SRC DST"));
    };
    let options = Arc::new(meaning::options(args)?);
    let filters = args.rules.filters(context, options.preserve.recursive, args.delete.delete_excluded)?;
    let filters = Arc::new(filters);
    if sources.len() > 1
        && options.delete.when != When::Never
        && sources.iter().any(|s| s.as_bytes().ends_with(b"/"))
    {
        let message = "--delete of what several sources together do not have is not there";
        return Err(CliError::usage(message, "name one source, or leave out the slashes at their ends"));
    }
    let mut outcome = Outcome::Done;
    for source in sources {
        let pair = Pair::new(source, destination, context)?;
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
}

impl Pair {
    fn new(source: &OsString, destination: &OsString, context: &Context) -> Result<Self> {
        let not_there = |what: &str| {
            let message = format!("{what} over ssh is not there yet");
            CliError::usage(message, "mount it, or use a path of this host")
        };
        let from = match Typed::parse(source, context) {
            Typed::Path(path) => ends::from_path(context, &path)?,
            Typed::Host { .. } => return Err(not_there("a source")),
            Typed::Volume { directory, snapshot: Some(snapshot), path } => {
                snapshot::source(context, &directory, &snapshot, &path)?
            }
            Typed::Volume { directory, snapshot: None, path } => {
                ends::from_path(context, &in_worktree(&directory, &path))?
            }
        };
        let mut into = match Typed::parse(destination, context) {
            Typed::Path(path) => ends::into_path(context, &path, &from)?,
            Typed::Host { .. } => return Err(not_there("a destination")),
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
        Ok(Self { source: (from.open)(&shown), top, path: from.path, into, words, avoid })
    }

    /// Refuses one directory as both ends; of two that lie one in the other, the inner one is not entered.
    fn nesting(
        from: &From,
        into: &mut Into,
        typed: &OsString,
        context: &Context,
    ) -> Result<[Option<(u64, u64)>; 2]> {
        use std::os::unix::fs::MetadataExt;
        let Some(source) = &from.path else { return Ok([None, None]) };
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
        let done = context.watch_loud(TASK, loud, |meter| self.work(args, options, filters, meter));
        let (from, to, plan, done) = done.map_err(|error| {
            CliError::from(error).or_resume("run the command again: it goes on where it stopped")
        })?;
        let run = Run { words: self.words.clone(), from: &from, to: &to, plan: &plan, done: done.as_ref() };
        let outcome = run.tell(args, context)?;
        if done.is_some_and(|done| done.stopped) {
            return Err(CliError::Stopped {
                resume: "run the command again: it goes on where it stopped".into(),
            });
        }
        Ok(outcome)
    }

    fn work(
        &self,
        args: &Args,
        options: &Arc<Options>,
        filters: &Arc<Filters>,
        meter: &Meter,
    ) -> vellum_sync::Result<(Listing, Listing, Plan, Option<Report>)> {
        let source = &*self.source;
        let present = if self.into.is_new { None } else { Some(self.into.open()?) };
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
            settle(present, &mut to, &theirs, meter)?;
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
