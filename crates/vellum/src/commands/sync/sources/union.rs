//! The union of several sources, collected one after the other.
//!
//! Invariant: all sources of a union go into one destination, and at most one end of a run is on another host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use vellum_sync::ends::name_charset::NameCharsets;
use vellum_sync::ends::remote::RemoteEnd;
use vellum_sync::ends::union::{SourceUnion, UnionPart};
use vellum_sync::ends::{SourceEnd, SyncSide};
use vellum_sync::model::options::{DeletePhase, SyncOptions};
use vellum_sync::rules::{ListedPaths, SyncFilters};

use super::{
    OpenedSources, PresentSources, RelativePath, SourceArg, SourceSettings, convert_local_source,
    describe_source, open_destination, two_remotes_error,
};
use crate::commands::sync::args::Args;
use crate::commands::sync::ends::{DestinationEndpoint, SourceEndpoint};
use crate::commands::sync::{check_nesting, iconv};
use crate::context::CommandContext;
use crate::error::{CliError, Result};

/// Several sources as one, which goes into the destination itself.
pub(super) fn open_union(
    present: PresentSources<'_>,
    destination: &OsString,
    base: SourceSettings<'_>,
    args: &Args,
    context: &CommandContext,
) -> Result<OpenedSources> {
    let mut union = UnionBuilder {
        base,
        destination,
        args,
        context,
        charsets: iconv::parse_name_charsets(args)?,
        parts: Vec::new(),
        words: Vec::new(),
        remotes: Vec::new(),
        outer: Vec::new(),
        selection: Some(ListedPaths::default()),
        target: None,
        named: Vec::new(),
        is_single: present.missing.is_empty(),
    };
    // All sources are missing: the destination is opened nevertheless, because --delete-missing-args deletes in it.
    if present.opened.is_empty() {
        union.select_listed_paths()?;
    }
    for (source_arg, from) in present.opened {
        union.add_source(source_arg, from)?;
    }
    union.finish_union(present.missing)
}

/// What is collected of several sources, one after the other.
struct UnionBuilder<'a> {
    base: SourceSettings<'a>,
    destination: &'a OsString,
    args: &'a Args,
    context: &'a CommandContext,
    charsets: Option<NameCharsets>,
    parts: Vec<UnionPart>,
    words: Vec<String>,
    remotes: Vec<RemoteEnd>,
    /// Directories of the destination that a source lies in.
    outer: Vec<(u64, u64)>,
    /// The paths that are selected so far; None once a source is selected whole.
    selection: Option<ListedPaths>,
    target: Option<DestinationEndpoint>,
    named: Vec<RelativePath>,
    is_single: bool,
}

impl UnionBuilder<'_> {
    /// Without any source nothing is selected, unless paths were.
    fn select_listed_paths(&mut self) -> Result<()> {
        let listed = || self.base.filters.selection.clone();
        self.selection = self.selection.take().filter(|_| self.args.places.relative).or_else(listed);
        self.is_single = false;
        self.target = Some(open_destination(self.destination, &nothing(), self.args, self.context)?);
        Ok(())
    }

    fn add_source(&mut self, source_arg: &SourceArg, from: SourceEndpoint) -> Result<()> {
        let SourceSettings { options, filters } = self.base;
        if let Some(remote) = &from.remote {
            // Connected one after the other: sshd refuses connections if too many begin at the same time
            // (MaxStartups).
            remote.inspect_target()?;
        }
        self.named.extend(source_arg.relative_path_in(&from));
        self.is_single &= !from.is_dir;
        let rules = source_arg.restrict_filters(filters, options)?;
        let own_rules = match self.charsets.filter(|_| from.remote.is_some()) {
            Some(charsets) => iconv::convert_listed_paths(&rules, charsets.to_remote()),
            None => Arc::clone(&rules),
        };
        let avoid = self.aim_source(&from)?;
        self.selection =
            self.selection.take().zip(rules.selection.clone()).map(|(all, one)| all.merge_with(one));
        self.words.push(describe_source(&from, source_arg));
        self.remotes.extend(from.remote.clone());
        let root = from.root.as_ref().map(|root| root.as_os_str().as_bytes()).unwrap_or_default();
        let under = from.name.clone().filter(|_| from.is_dir);
        let top = under.as_deref().unwrap_or_default();
        let rules = own_rules
            .create_named_filter(SyncSide::Source, root, top)
            .map_err(vellum_sync::SyncError::from)?;
        let shown = from.name.clone().unwrap_or_default();
        self.parts.push(UnionPart { source: (from.open)(&shown), rules, under, avoid });
        Ok(())
    }

    /// Opens the destination, or checks that this source can go where those before it go. Returns the directory of the
    /// source that the destination is.
    fn aim_source(&mut self, from: &SourceEndpoint) -> Result<Option<(u64, u64)>> {
        let whole = as_dir_source(from);
        let mut into = match self.target.take() {
            Some(DestinationEndpoint { remote: Some(_), .. }) if from.remote.is_some() => {
                return Err(two_remotes_error());
            }
            Some(into) => into,
            None => open_destination(self.destination, &whole, self.args, self.context)?,
        };
        refuse_copy_onto_itself(from, &into)?;
        let [avoid, inside] = check_nesting(&whole, &mut into, self.destination, self.context)?;
        self.outer.extend(inside);
        self.target = Some(into);
        Ok(avoid)
    }

    fn finish_union(self, missing: Vec<Vec<u8>>) -> Result<OpenedSources> {
        let SourceSettings { options, filters } = self.base;
        let outer = single_nested_source(self.outer, options)?;
        let into =
            self.target.ok_or_else(|| CliError::usage_error("a source is needed", "vellum sync SRC DST"))?;
        let mut remotes = self.remotes;
        remotes.extend(into.remote.clone());
        let is_nothing = self.parts.is_empty();
        let words = match is_nothing {
            true => format!("nothing goes into {}", into.words),
            false => format!("{} go into {}", format_source_list(&self.words), into.words),
        };
        let selection =
            self.selection.map(|all| all.merge_with(select_missing_paths(&missing, self.args, options)));
        let is_from_remote = !remotes.is_empty() && into.remote.is_none();
        let source = Box::new(SourceUnion::new(self.parts));
        Ok(OpenedSources {
            source: convert_local_source(source, self.charsets.filter(|_| !is_from_remote)),
            top: Vec::new(),
            root: None,
            into,
            words,
            avoid: [None, outer],
            remotes,
            is_single: self.is_single,
            filters: with_selection(filters, selection),
            named: self.named,
            missing,
            is_nothing,
            charsets: self.charsets,
        })
    }
}

/// With `--relative`: paths that are not there, and may go at the destination.
fn select_missing_paths(missing: &[Vec<u8>], args: &Args, options: &SyncOptions) -> ListedPaths {
    if !(args.places.relative && options.delete.missing) {
        return ListedPaths::default();
    }
    let parsed = missing.iter().filter_map(|path| ListedPaths::parse(path, true, false).ok());
    parsed.fold(ListedPaths::default().deleting_missing(true), ListedPaths::merge_with)
}

/// Sources in words: the first ones, and how many more there are.
pub fn format_source_list(words: &[String]) -> String {
    /// At most this many are named.
    const NAMED: usize = 4;
    // One more than that is named, too: 'and 1 more' would say less in as much space.
    match words.get(..NAMED).filter(|_| words.len() > NAMED + 1) {
        Some(first) => format!("{} and {} more", first.join(", "), words.len() - NAMED),
        None => words.join(" and "),
    }
}

/// The filters, with another selection if there is one.
fn with_selection(filters: &Arc<SyncFilters>, selection: Option<ListedPaths>) -> Arc<SyncFilters> {
    match selection {
        Some(selection) => Arc::new(SyncFilters { selection: Some(selection), ..(**filters).clone() }),
        None => Arc::clone(filters),
    }
}

/// A source in which there is nothing.
fn nothing() -> SourceEndpoint {
    SourceEndpoint {
        open: Box::new(|_: &[u8]| -> Box<dyn SourceEnd> { Box::new(SourceUnion::new(Vec::new())) }),
        words: "nothing".to_owned(),
        name: None,
        is_dir: true,
        path: None,
        root: None,
        remote: None,
    }
}

/// A source as one of several: whatever it is, it goes into a directory.
fn as_dir_source(from: &SourceEndpoint) -> SourceEndpoint {
    SourceEndpoint {
        path: from.path.clone(),
        root: from.root.clone(),
        remote: from.remote.clone(),
        ..nothing()
    }
}

/// The one of the sources that lies in the destination and is not entered there.
fn single_nested_source(inside: Vec<(u64, u64)>, options: &SyncOptions) -> Result<Option<(u64, u64)>> {
    match inside.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        // Nothing is deleted, so they are like all else that is there.
        _ if options.delete.when == DeletePhase::Never => Ok(None),
        _ => {
            let message = "several of the sources lie in the destination, where --delete could delete them";
            Err(CliError::usage_error(message, "synchronise them one after the other"))
        }
    }
}

/// Refuses a directory that would go into the destination as itself.
fn refuse_copy_onto_itself(from: &SourceEndpoint, into: &DestinationEndpoint) -> Result<()> {
    let (Some(source), Some(name), None) = (&from.path, &from.name, &into.remote) else { return Ok(()) };
    // If the name does not exist in the destination, it cannot be the source.
    if into.path.join(OsStr::from_bytes(name)).canonicalize().is_ok_and(|target| target == *source) {
        let message = format!("source and destination are one directory: {} is there already", from.words);
        return Err(CliError::usage_error(message, "leave it out"));
    }
    Ok(())
}
