//! `vellum find`: which snapshots have a file.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::ValueEnum;
use serde::Serialize;
use vellum_host::escape::format_path;
use vellum_sync::rules::NamePattern;
use vellum_types::{FileKind, UnixTime};
use vellum_volume::Volume;
use vellum_volume::history::{HistoryEntry, list_history};
use vellum_volume::name_search::{NamePeriod, PeriodSplit};
use vellum_volume::resolve::parse_moment;
use vellum_volume::revision_range::{RangeStart, RevisionRange};

use crate::context::CommandContext;
use crate::context::names::SnapshotNames;
use crate::error::{CommandOutcome, Result};
use crate::ui::json::NameJson;
use crate::ui::table::{CellLimit, ShortenedColumn, TableFit, TextTable};
use crate::ui::{format, json};

/// Find the snapshots that have a file
///
/// PATTERN is compared with names of files and directories, or, if it has a '/', with their paths from the root of the
/// worktree; '*' and '?' stand for anything but a '/', '**' also for that. For each name that matches, the first and the last
/// snapshot that have it are printed: a name that was deleted and came back has several lines. 'vellum history PATH' lists the
/// versions of one file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name, as in report.pdf, '*.pdf' or 'docs/**/*.pdf'
    #[arg(value_name = "PATTERN")]
    pattern: OsString,
    /// Only in the snapshots from A up to B; without A, from the first one; without B, up to the current one
    #[arg(long = "in", value_name = "A..B", conflicts_with = "all")]
    range: Option<String>,
    /// In all snapshots of the volume, not only in the ancestors of this worktree's state
    #[arg(short, long)]
    all: bool,
    /// Ignore case
    #[arg(short, long)]
    ignore_case: bool,
    /// Only names of this kind
    #[arg(long = "type", value_name = "KIND")]
    kind: Option<KindArg>,
    /// Only files of at least this size
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    min_size: Option<u64>,
    /// Only files of at most this size
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    max_size: Option<u64>,
    /// Only what was modified after this time, as in 'yesterday', '2 weeks ago' or 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    newer: Option<UnixTime>,
    /// Only names that are not in the newest of these snapshots any more
    #[arg(long)]
    deleted: bool,
    /// Only names whose content changed in these snapshots, with a line for each content
    #[arg(long, conflicts_with = "deleted")]
    content_changed: bool,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// A regular file
    #[value(name = "file", alias = "f")]
    File,
    /// A directory
    #[value(name = "directory", alias = "d", alias = "dir")]
    Directory,
    /// A symbolic link
    #[value(name = "symlink", alias = "l")]
    Symlink,
    /// A FIFO, socket or device
    #[value(name = "special", alias = "s")]
    Special,
}

impl KindArg {
    fn contains(self, kind: FileKind) -> bool {
        self == match kind {
            FileKind::File => Self::File,
            FileKind::Dir => Self::Directory,
            FileKind::Symlink => Self::Symlink,
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => Self::Special,
        }
    }
}

#[derive(Serialize)]
struct FindJson {
    found: Vec<FoundJson>,
}

#[derive(Serialize)]
struct FoundJson {
    #[serde(flatten)]
    path: NameJson,
    kind: &'static str,
    size: u64,
    modified: String,
    worktree: String,
    first: MomentJson,
    last: MomentJson,
    current: bool,
}

#[derive(Serialize)]
struct MomentJson {
    id: String,
    time: String,
}

/// Finds them. The exit code is 1 if there are none.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let volume = context.open_volume()?;
    let names = SnapshotNames::load_all(&volume)?;
    let wanted = WantedNames::new(args);
    let snapshots = select_snapshots(args, &volume)?;
    let split = if args.content_changed { PeriodSplit::ByContent } else { PeriodSplit::ByPresence };
    let mut found = volume.find_names(&snapshots, split, |name| wanted.may_match_name(name))?;
    // The walk asks about names only; attributes and whole paths are known for what it has found.
    found.retain(|period| wanted.matches_period(period));
    let ui = &context.ui;
    if ui.is_json() {
        ui.print_json(&FindJson { found: found.iter().map(FoundJson::new).collect() })?;
    } else if found.is_empty() {
        print_nothing_found(args, context)?;
    } else {
        ui.print_lines(format_periods(&found, &names, context).format_lines())?;
    }
    // As grep does it.
    Ok(CommandOutcome::from_findings(found.is_empty()))
}

/// Says that there is nothing, and, to whoever expects a part of a name to suffice, what finds that.
fn print_nothing_found(args: &Args, context: &CommandContext) -> Result<()> {
    if args.content_changed {
        return context.ui.print_note("no name like this changed its content");
    }
    let pattern = format_path(args.pattern.as_bytes());
    let is_plain = !pattern.contains(['*', '?', '[', '/', '\'']);
    context.ui.print_note(match is_plain {
        true => format!("no snapshot has such a name; '*{pattern}*' finds what contains it"),
        false => "no snapshot has such a name".into(),
    })
}

/// What is looked for.
struct WantedNames<'a> {
    args: &'a Args,
    pattern: NamePattern,
}

impl<'a> WantedNames<'a> {
    fn new(args: &'a Args) -> Self {
        Self { args, pattern: NamePattern::new(&fold_case(args, args.pattern.as_bytes())) }
    }

    /// Whether an entry of a directory may be wanted, as far as its name tells.
    fn may_match_name(&self, name: &[u8]) -> bool {
        self.pattern.may_match_name(&fold_case(self.args, name))
    }

    fn matches_period(&self, period: &NamePeriod) -> bool {
        let Args { kind, min_size, max_size, newer, deleted, content_changed, .. } = self.args;
        let attr = &period.attr;
        // Only files have content whose size means something.
        let has_size = |fits: &dyn Fn(u64) -> bool| attr.kind == FileKind::File && fits(attr.size);
        self.pattern.matches_path(&fold_case(self.args, &period.path), attr.kind == FileKind::Dir)
            && kind.is_none_or(|kind| kind.contains(attr.kind))
            && min_size.is_none_or(|least| has_size(&|size| size >= least))
            && max_size.is_none_or(|most| has_size(&|size| size <= most))
            && newer.is_none_or(|moment| attr.mtime > moment)
            && !(*deleted && period.is_current)
            && (!*content_changed || period.has_other_content)
    }
}

/// The bytes that are compared. Letters beyond ASCII keep their case: names need not be text.
fn fold_case<'b>(args: &Args, bytes: &'b [u8]) -> Cow<'b, [u8]> {
    if args.ignore_case { bytes.to_ascii_lowercase().into() } else { bytes.into() }
}

/// Returns the snapshots to look at, in any order.
fn select_snapshots(args: &Args, volume: &Volume) -> Result<Vec<HistoryEntry>> {
    if args.all {
        return Ok(list_history(&volume.catalog)?);
    }
    let range = match &args.range {
        None => RevisionRange { first: None, last: volume.read_head()? },
        Some(typed) => volume.resolve_range(typed)?,
    };
    // The first one itself is looked at: what it has and a later one lacks was deleted in between.
    Ok(volume.walk_range(range, RangeStart::Included)?.collect::<vellum_volume::Result<_>>()?)
}

fn format_periods(found: &[NamePeriod], names: &SnapshotNames, context: &CommandContext) -> TextTable {
    let style = context.ui.style;
    let mut table = TextTable::with_limit([4], CellLimit::OutOfLine(40));
    for period in found {
        let (until, last) = if period.is_current {
            (String::new(), "still there".to_owned())
        } else {
            (names.short_id(&period.last.id), format::format_local_minute(period.last.record.time))
        };
        let is_dir = period.attr.kind == FileKind::Dir;
        let size = if is_dir { String::new() } else { format::format_size(period.attr.size) };
        let mut path = format_path(&period.path);
        if is_dir {
            path.push('/');
        }
        table.add_row([
            style.paint_yellow(&names.short_id(&period.first.id)),
            format::format_local_minute(period.first.record.time),
            style.paint_yellow(&until),
            last,
            size,
            path,
        ]);
    }
    let shortened = [ShortenedColumn::keep_end(5)];
    table.fit_columns(context.ui.output_columns(), &TableFit { optional: &[4, 1], shortened: &shortened });
    table
}

impl FoundJson {
    fn new(period: &NamePeriod) -> Self {
        Self {
            path: NameJson::new(&period.path),
            kind: json::file_kind_name(period.attr.kind),
            size: period.attr.size,
            modified: json::format_json_time(period.attr.mtime),
            worktree: period.last.record.worktree.clone(),
            first: MomentJson::new(&period.first),
            last: MomentJson::new(&period.last),
            current: period.is_current,
        }
    }
}

impl MomentJson {
    fn new(entry: &HistoryEntry) -> Self {
        Self { id: entry.id.to_string(), time: json::format_json_time(entry.record.time) }
    }
}

fn parse_time(typed: &str) -> Result<UnixTime, String> {
    parse_moment(typed).ok_or_else(|| {
        "a time is typed like 2026-01-31, '2026-01-31 18:00', yesterday or '2 weeks ago'".into()
    })
}
