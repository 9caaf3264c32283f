//! Sources as typed: each on its own, or several whose union is what the destination is to have.
//!
//! Invariant: with `--relative` a source is the directory that its path begins in, and of that only what the path names.

mod union;

pub use union::format_source_list;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use vellum_host::beneath::raise_open_files_limit;
use vellum_host::escape::format_path;
use vellum_sync::ends::name_charset::{ConvertedSource, NameCharsets, NameConversion, SourcePlace};
use vellum_sync::ends::remote::RemoteEnd;
use vellum_sync::ends::{SourceEnd, SyncSide};
use vellum_sync::model::listing::TreeListing;
use vellum_sync::model::options::{FollowSymlinks, SyncOptions};
use vellum_sync::rules::{ListedPaths, SyncFilters};

use super::args::Args;
use super::ends::{self, DestinationEndpoint, EndpointArg, SourceEndpoint};
use super::{iconv, remote, snapshot, worktree_file_path};
use crate::context::CommandContext;
use crate::error::{CliError, Result};

/// A source as typed.
#[derive(Debug, Clone)]
pub struct SourceArg {
    typed: EndpointArg,
    /// What of it is meant, with `--relative`.
    pub named: Option<Vec<u8>>,
    /// The directory in which the path begins takes part itself: `./` means that.
    with_root: bool,
}

impl SourceArg {
    /// What was typed.
    pub fn parse_source(typed: &OsStr, args: &Args, context: &CommandContext) -> Result<Self> {
        let mut typed = EndpointArg::parse_endpoint(typed, context);
        let path = match &mut typed {
            EndpointArg::Path(path) | EndpointArg::Host { path, .. } | EndpointArg::Volume { path, .. } => {
                path
            }
        };
        // Listed paths are paths in what is named.
        if args.rules.has_path_lists() {
            if !path.is_empty() {
                path.push("/");
            }
            return Ok(Self { typed, named: None, with_root: false });
        }
        if !args.places.relative {
            return Ok(Self { typed, named: None, with_root: false });
        }
        let with_root = path.as_bytes().starts_with(b"./") && !args.places.no_implied_dirs;
        let (base, named) = split_relative_path(path.as_bytes());
        if named.split(|byte| *byte == b'/').any(|name| name == b"..") {
            let message = format!("'{}' contains '..'", format_path(path.as_bytes()));
            return Err(CliError::usage_error(
                message,
                "a path without '..', or one that begins behind '/./'",
            ));
        }
        let with_root = with_root && base == b"./";
        *path = OsString::from_vec(base);
        Ok(Self { typed, named: (!named.is_empty()).then_some(named), with_root })
    }

    /// Opens it.
    pub fn open_source(&self, args: &Args, context: &CommandContext) -> Result<SourceEndpoint> {
        let from = self.open_endpoint(args, context)?;
        if args.delete.remove_source_files
            && let Some(root) = &from.root
        {
            // Objects of a store would count as files that were copied, and be removed.
            ends::refuse_reserved_dir(root)?;
        }
        Ok(from)
    }

    fn open_endpoint(&self, args: &Args, context: &CommandContext) -> Result<SourceEndpoint> {
        let follow = super::meaning::parse_follow_mode(&args.preserve);
        match &self.typed {
            EndpointArg::Path(path) => ends::open_local_source(context, path, follow),
            EndpointArg::Host { host, path } => remote::open_remote_source(host, path, args),
            EndpointArg::Volume { directory, snapshot: Some(snapshot), path } => {
                if follow != FollowSymlinks::Never || args.preserve.safe_links {
                    let message = "symlinks of a snapshot cannot be followed, nor judged by where they lead";
                    return Err(CliError::usage_error(message, "leave out -L, -k and the like"));
                }
                if args.delete.remove_source_files {
                    let message = format!("files cannot be removed from the snapshot {snapshot}");
                    return Err(CliError::usage_error(message, "leave out --remove-source-files"));
                }
                snapshot::open_snapshot_source(context, directory, snapshot, path)
            }
            EndpointArg::Volume { directory, snapshot: None, path } => {
                ends::open_local_source(context, &worktree_file_path(directory, path), follow)
            }
        }
    }

    /// What of it is meant, opened as `from`.
    fn relative_path_in(&self, from: &SourceEndpoint) -> Option<RelativePath> {
        self.named.clone().map(|path| RelativePath { path, root: from.root.clone() })
    }

    /// The rules that hold in it.
    pub fn restrict_filters(
        &self,
        filters: &Arc<SyncFilters>,
        options: &SyncOptions,
    ) -> Result<Arc<SyncFilters>> {
        let Some(named) = &self.named else { return Ok(Arc::clone(filters)) };
        let selection = ListedPaths::parse(named, true, options.preserve.recursive)
            .map_err(|error| CliError::usage_error(error.to_string(), ""))?;
        let selection = if self.with_root { selection.with_root() } else { selection };
        let selection = selection.deleting_missing(options.delete.missing);
        Ok(Arc::new(SyncFilters { selection: Some(selection), ..(**filters).clone() }))
    }

    /// Whether it is a path of this host at which nothing stands.
    pub fn is_missing(&self, context: &CommandContext) -> bool {
        let path = match &self.typed {
            EndpointArg::Path(path) => path,
            // Whether these exist is known when they are opened.
            EndpointArg::Host { .. } | EndpointArg::Volume { .. } => return false,
        };
        let named = self.named.as_deref().unwrap_or_default();
        let whole = context.resolve_local_path(&std::path::Path::new(path).join(OsStr::from_bytes(named)));
        whole.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// The path that it would have in the destination; None for what is in a directory.
    fn path_at_destination(&self) -> Option<Vec<u8>> {
        if let Some(named) = &self.named {
            return Some(named.strip_suffix(b"/").unwrap_or(named).to_vec());
        }
        let (EndpointArg::Path(path) | EndpointArg::Host { path, .. } | EndpointArg::Volume { path, .. }) =
            &self.typed;
        let name = path.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        (!ends::names_dir_content(path) && !name.is_empty()).then(|| name.to_vec())
    }
}

/// Sources that are there, opened, and the paths in the destination of those that are not.
struct PresentSources<'a> {
    opened: Vec<(&'a SourceArg, SourceEndpoint)>,
    missing: Vec<Vec<u8>>,
}

impl<'a> PresentSources<'a> {
    /// Opens those that are there. Where none may be missing, one that is not there is an error.
    fn open(
        source_args: &'a [SourceArg],
        may_be_missing: bool,
        args: &Args,
        context: &CommandContext,
    ) -> Result<Self> {
        let mut present = Self { opened: Vec::new(), missing: Vec::new() };
        for source_arg in source_args {
            let opened = match may_be_missing && source_arg.is_missing(context) {
                true => None,
                false => match source_arg.open_source(args, context) {
                    // Whether a path on another host exists is known only after an attempt to open it.
                    Err(error) if may_be_missing && error.kind() == vellum_types::ErrorKind::NotFound => None,
                    opened => Some(opened?),
                },
            };
            match opened {
                Some(opened) => present.opened.push((source_arg, opened)),
                None => present.missing.extend(source_arg.path_at_destination()),
            }
        }
        Ok(present)
    }
}

/// With `--relative`: where a path begins that goes into the destination, and it.
fn split_relative_path(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    // As with rsync, what is kept of the path begins behind the first '/./'.
    let mark = path.windows(3).position(|bytes| bytes == b"/./");
    match (path, mark) {
        (_, Some(at)) => (path.get(..=at).unwrap_or_default().to_vec(), strip_path_prefix(path, at + 3)),
        ([b'.', b'/', ..], None) => (b"./".to_vec(), strip_path_prefix(path, 2)),
        ([b'/', ..], None) => (b"/".to_vec(), strip_path_prefix(path, 1)),
        (b"." | b"", None) => (b"./".to_vec(), Vec::new()),
        _ => (b"./".to_vec(), path.to_vec()),
    }
}

fn strip_path_prefix(path: &[u8], start: usize) -> Vec<u8> {
    let rest = path.get(start..).unwrap_or_default();
    // As for the kernel, several slashes are one.
    let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
    match rest.get(slashes..).unwrap_or_default() {
        b"." | b"./" => Vec::new(),
        rest => rest.to_vec(),
    }
}

/// What of a source is meant, with `--relative`.
pub struct RelativePath {
    /// The path from where it begins to matter.
    pub path: Vec<u8>,
    /// Where that is, on this host.
    root: Option<PathBuf>,
}

impl RelativePath {
    /// Whether a rule leaves it out. What is on the way to it is not asked about.
    pub fn is_excluded(&self, filters: &SyncFilters) -> vellum_sync::Result<bool> {
        let rules = Arc::new(SyncFilters { selection: None, ..filters.clone() });
        let root = self.root.as_ref().map(|root| root.as_os_str().as_bytes()).unwrap_or_default();
        let judge = rules.create_filter(SyncSide::Source, root)?;
        let judge = judge.enter_dir(b"", &|_| Ok(None))?.unwrap_or(judge);
        let path = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        let takes = |is_dir| judge.evaluate_entry(path, is_dir).transfer;
        // What is not there cannot be left out; on another host this is unknown.
        Ok(match &self.root {
            Some(root) => std::fs::symlink_metadata(root.join(OsStr::from_bytes(path)))
                .is_ok_and(|found| !takes(found.is_dir())),
            // Its kind is not known here, so a rule that excludes either kind counts.
            None => !takes(false) || !takes(true),
        })
    }
}

/// What is synchronised in one go.
pub struct OpenedSources {
    pub source: Box<dyn SourceEnd>,
    /// The name under which it goes into the destination, if it is a directory that was named itself.
    pub top: Vec<u8>,
    /// Where rules are anchored, on this host.
    pub root: Option<PathBuf>,
    pub into: DestinationEndpoint,
    pub words: String,
    /// The other end lies in this one: device and inode of what is not entered.
    pub avoid: [Option<(u64, u64)>; 2],
    pub remotes: Vec<RemoteEnd>,
    pub is_single: bool,
    /// What the destination's entries are judged by, and the source's if it is one.
    pub filters: Arc<SyncFilters>,
    /// What must be there, unless a rule leaves it out.
    pub named: Vec<RelativePath>,
    /// Paths in the destination of sources that are not there.
    pub missing: Vec<Vec<u8>>,
    /// None of them is there.
    pub is_nothing: bool,
    /// How names are written here and at the other end.
    pub charsets: Option<NameCharsets>,
}

impl OpenedSources {
    /// Whether entries come from another host.
    pub fn is_from_remote(&self) -> bool {
        !self.remotes.is_empty() && self.into.remote.is_none()
    }

    /// From the charset of this host to that of a side, if they differ: between two directories of this host the other
    /// charset is the destination's.
    fn conversion_to(&self, side: SyncSide) -> Option<NameConversion> {
        let is_other = match side {
            SyncSide::Source => self.is_from_remote(),
            SyncSide::Destination => !self.is_from_remote(),
        };
        self.charsets.filter(|_| is_other).map(NameCharsets::to_remote)
    }

    /// What a side's entries are judged by.
    pub fn filters_of(&self, side: SyncSide) -> Arc<SyncFilters> {
        match self.conversion_to(side) {
            Some(conversion) => iconv::convert_listed_paths(&self.filters, conversion),
            None => Arc::clone(&self.filters),
        }
    }

    /// A path that was typed, as plans know it.
    pub fn convert_planned_path(&self, typed: &[u8]) -> Vec<u8> {
        match self.conversion_to(SyncSide::Destination) {
            Some(conversion) => conversion.convert_path(typed),
            None => typed.to_vec(),
        }
    }

    /// Names of plans as this host writes them, if they differ.
    pub fn display_conversion(&self) -> Option<NameConversion> {
        self.conversion_to(SyncSide::Destination).map(NameConversion::reversed)
    }

    /// Paths in the destination of what was named or listed, and is not at the source.
    pub fn missing_from(&self, from: &TreeListing) -> Vec<Vec<u8>> {
        let is_gone = |path: &&[u8]| {
            let there = |root: &PathBuf| root.join(OsStr::from_bytes(path)).symlink_metadata().is_ok();
            from.find_path(&self.convert_planned_path(path)).is_none()
                // A path that exists and is not in the listing was excluded by a rule, so it is not missing.
                && !self.root.as_ref().is_some_and(there)
        };
        let listed = self.filters.selection.iter().flat_map(ListedPaths::listed).filter(is_gone);
        let missing = self.missing.iter().map(Vec::as_slice).chain(listed);
        missing.map(|path| self.convert_planned_path(path)).collect()
    }
}

/// What holds for every source of a run.
#[derive(Clone, Copy)]
pub struct SourceSettings<'a> {
    pub options: &'a Arc<SyncOptions>,
    pub filters: &'a Arc<SyncFilters>,
}

/// Opens one source, or the union of several, and the destination.
pub fn open_sources(
    source_args: &[SourceArg],
    destination: &OsString,
    base: SourceSettings<'_>,
    args: &Args,
    context: &CommandContext,
) -> Result<OpenedSources> {
    let SourceSettings { options, filters } = base;
    if source_args.len() > 1 {
        // Each source is held open.
        raise_open_files_limit();
    }
    let mut present = PresentSources::open(source_args, options.ignore_missing, args, context)?;
    // With --delete-missing-args, sources that are missing are deleted at the destination: a union, which knows
    // them all, is needed even if one source is left.
    let is_alone = present.opened.len() == 1 && (present.missing.is_empty() || !options.delete.missing);
    if let Some((source_arg, from)) = present.opened.pop_if(|_| is_alone) {
        let mut into = open_destination(destination, &from, args, context)?;
        let words = format!("{} goes into {}", describe_source(&from, source_arg), into.words);
        let avoid = super::check_nesting(&from, &mut into, destination, context)?;
        let top = from.name.clone().filter(|_| from.is_dir).unwrap_or_default();
        let shown = into.shown.clone().unwrap_or_default();
        let remotes = from.remote.iter().chain(&into.remote).cloned().collect();
        let is_single = !from.is_dir;
        let filters = source_arg.restrict_filters(filters, options)?;
        let named = source_arg.relative_path_in(&from).into_iter().collect();
        let charsets = iconv::parse_name_charsets(args)?;
        let is_local = from.remote.is_none();
        let source = convert_local_source((from.open)(&shown), charsets.filter(|_| is_local));
        return Ok(OpenedSources {
            source,
            top,
            root: from.root,
            into,
            words,
            avoid,
            remotes,
            is_single,
            filters,
            named,
            missing: Vec::new(),
            is_nothing: false,
            charsets,
        });
    }
    union::open_union(present, destination, base, args, context)
}

fn describe_source(from: &SourceEndpoint, source_arg: &SourceArg) -> String {
    match &source_arg.named {
        Some(named) => format!("'{}', with the directories on its way,", format_path(named)),
        None => from.words.clone(),
    }
}

/// Sources on this host, listed in the charset of the destination.
fn convert_local_source(source: Box<dyn SourceEnd>, charsets: Option<NameCharsets>) -> Box<dyn SourceEnd> {
    match charsets {
        Some(charsets) => Box::new(ConvertedSource::new(source, charsets.to_remote(), SourcePlace::Local)),
        None => source,
    }
}

/// Opens the destination.
fn open_destination(
    destination: &OsString,
    from: &SourceEndpoint,
    args: &Args,
    context: &CommandContext,
) -> Result<DestinationEndpoint> {
    let into = match EndpointArg::parse_endpoint(destination, context) {
        EndpointArg::Path(path) => {
            ends::find_local_destination(context, &path, from.shape(), &args.preserve)?
        }
        EndpointArg::Host { .. } if from.remote.is_some() => return Err(two_remotes_error()),
        EndpointArg::Host { host, path } => remote::find_remote_destination(&host, &path, from, args)?,
        EndpointArg::Volume { snapshot: Some(snapshot), .. } => {
            let message = format!("the snapshot {snapshot} never changes");
            return Err(CliError::usage_error(message, "a worktree is written to: VOLUME:/PATH"));
        }
        EndpointArg::Volume { directory, snapshot: None, path } => {
            let path = worktree_file_path(&directory, &path);
            ends::find_local_destination(context, &path, from.shape(), &args.preserve)?
        }
    };
    if into.remote.is_none() {
        ends::refuse_reserved_dir(&into.path)?;
    }
    if args.places.mkpath && into.remote.is_some() {
        let message = "--mkpath is for directories of this host";
        return Err(CliError::usage_error(message, "the other host makes one directory above DST by itself"));
    }
    Ok(DestinationEndpoint { makes_path: args.places.mkpath, ..into })
}

fn two_remotes_error() -> CliError {
    let message = "one of the two ends has to be on this host";
    CliError::usage_error(message, "run the command on one of the other hosts")
}

#[cfg(test)]
mod tests {
    use super::split_relative_path;

    #[test]
    fn a_path_is_cut_where_it_begins_to_matter() {
        for (path, base, named) in [
            ("a/b/c", "./", "a/b/c"),
            ("a/./b/c", "a/", "b/c"),
            ("/a/b", "/", "a/b"),
            ("/a/.//b/", "/a/", "b/"),
            ("./a", "./", "a"),
            ("./", "./", ""),
            ("a/./.", "a/", ""),
        ] {
            assert_eq!(split_relative_path(path.as_bytes()), (base.into(), named.into()), "{path}");
        }
    }
}
