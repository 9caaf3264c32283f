//! Runs with plain objects of a service as one side: `s3://BUCKET/PREFIX`, `gs://`, `az://`.
//!
//! Invariant: an address means what is below its prefix, on either side. A Vellum store is never the destination.
//! Deliberately absent: what an object and a file have to do with each other (see `vellum_sync::ends::object`).

mod refused;
mod run;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use vellum_host::escape::format_path;
use vellum_store::object::address::{ServiceAddress, ServiceKind};
use vellum_store::{PlainObjects, RequestLimits, StoreAddress};
use vellum_sync::ends::object::{ObjectEnd, check_not_in_store};
use vellum_sync::ends::union::{SourceUnion, UnionPart};
use vellum_sync::ends::{SourceEnd, SyncSide};
use vellum_sync::model::options::{DeletePhase, SymlinkHandling, SyncOptions};
use vellum_sync::rules::SyncFilters;
use vellum_volume::VolumeError;
use vellum_volume::state::find_user_state_dir;

use super::args::Args;
use super::ends::{self, DestinationEndpoint, EndpointArg, SourceEndpoint, SourceShape};
use super::line_format::SyncDirection;
use super::list_only::SourceLister;
use super::sources::{SourceArg, format_source_list};
use super::{TypedEnds, backups, check_move_options, meaning, split_typed_ends, watch, worktree_file_path};
use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use run::{LocalSide, ObjectRun, RunOptions};

/// Whether one of the sides is a service.
pub fn names_service(args: &Args) -> bool {
    let ends = match args.ends.as_slice() {
        // The destination of a run that only lists its sources has no meaning.
        [sources @ .., _] if args.show.list_only && !sources.is_empty() => sources,
        ends => ends,
    };
    ends.iter().any(|typed| is_service_address(typed))
}

/// Whether an argument is the address of a service: `./` begins a path that looks like one.
fn is_service_address(typed: &OsStr) -> bool {
    let is_of_kind = |kind: &ServiceKind| {
        let rest = typed.as_bytes().strip_prefix(kind.scheme().as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"://"))
    };
    ServiceKind::ALL.iter().any(is_of_kind)
}

/// Synchronises a directory with a service: once, or whenever the directory changes.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    args.rsync.refuse_unsupported()?;
    let direction = find_direction(args);
    // Before the service is asked for anything: what was typed decides alone.
    refused::refuse_options(args, direction)?;
    match args.watch.watch {
        true => watch::run(args, context),
        false => run_once(args, context, false),
    }
}

fn find_direction(args: &Args) -> SyncDirection {
    // With --list-only, the last one can be the source, and a destination has no meaning.
    match args.ends.last().is_some_and(|last| is_service_address(last)) && !args.show.list_only {
        true => SyncDirection::Send,
        false => SyncDirection::Receive,
    }
}

/// One run. `hides_idle`: nothing is printed if there was nothing to do.
pub fn run_once(args: &Args, context: &CommandContext, hides_idle: bool) -> Result<CommandOutcome> {
    let direction = find_direction(args);
    let TypedEnds { sources, destination } = split_typed_ends(args)?;
    if args.show.list_only {
        return list_sources(sources, args, context);
    }
    let Some(destination) = destination.filter(|_| !sources.is_empty()) else {
        return Err(CliError::usage_error("a run with a service has a source and a destination", "SRC DST"));
    };
    let has_service_source = sources.iter().any(|source| is_service_address(source));
    if has_service_source && is_service_address(destination) {
        return Err(not_here_error("one of the two ends has to be a directory of this host"));
    }
    if has_service_source && sources.len() > 1 {
        let message = "a service is the only source of a run";
        return Err(CliError::usage_error(
            message,
            "a run for each source, or the prefix that they have in common",
        ));
    }
    let options = meaning::parse_sync_options(args)?;
    if options.delete.when != DeletePhase::Never && !options.preserve.recursive {
        return Err(CliError::usage_error("--delete requires recursion", "give -r or -a too"));
    }
    if options.moves {
        check_move_options(&options)?;
    }
    let filters = args.rules.load_filters(context, options.preserve.recursive, options.delete.excluded)?;
    let filters = Arc::new(filters);
    let parts = RunParts { args, context, filters, hides_idle, options: adapt_options(options, direction) };
    let run = match (direction, sources) {
        (SyncDirection::Receive, [source]) => parts.prepare_download(source, destination)?,
        (SyncDirection::Send, [source]) => parts.prepare_upload(source, destination)?,
        (SyncDirection::Send | SyncDirection::Receive, _) => {
            parts.prepare_union_upload(sources, destination)?
        }
    };
    run.run(args, context)
}

/// `--list-only`: prints the objects below each prefix.
fn list_sources(sources: &[OsString], args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if !sources.iter().all(|source| is_service_address(source)) {
        return Err(CliError::usage_error("--list-only lists directories or services, not both", "two runs"));
    }
    let mut options = meaning::parse_sync_options(args)?;
    // Prefixes are parts of keys, and have no listings of their own.
    options.preserve.recursive = true;
    let options = Arc::new(options);
    let filters = Arc::new(args.rules.load_filters(context, true, options.delete.excluded)?);
    let opened = sources.iter().map(|source| open_end(parse_address(source)?, args));
    let ends = opened.collect::<Result<Vec<ObjectEnd>>>()?;
    SourceLister { options: &options, filters: &filters, args, context }.list_objects(&ends)
}

/// What a service has no place for is not copied, and no difference.
fn adapt_options(mut options: SyncOptions, direction: SyncDirection) -> SyncOptions {
    /// Threads that receive: they wait for the service, not for the machine.
    const JOBS: u32 = 8;
    let preserve = &mut options.preserve;
    // An object has no kind: a symlink that was stored as one would come back as a file.
    preserve.symlinks = SymlinkHandling::Skip;
    preserve.devices = false;
    preserve.specials = false;
    preserve.modes = false;
    preserve.owners = false;
    preserve.groups = false;
    // Directories exist only as parts of keys, and have no time.
    preserve.omit_dir_times = true;
    // -P is accepted for the progress that it shows: incomplete objects are not kept.
    options.writing.resume = false;
    if direction == SyncDirection::Receive {
        options.effort.jobs.get_or_insert(JOBS);
    }
    options
}

fn not_here_error(message: &str) -> CliError {
    CliError::usage_error(message, "copy to a directory first, and from there in a second run")
}

/// What goes to a service.
struct UploadSource {
    source: Box<dyn SourceEnd>,
    /// There are only files that were named themselves.
    is_single: bool,
    words: String,
    /// The name of a directory that was named itself.
    top: Vec<u8>,
    /// Where rules are anchored, on this host.
    root: Option<PathBuf>,
}

/// What a run is made of.
struct RunParts<'a> {
    args: &'a Args,
    context: &'a CommandContext,
    filters: Arc<SyncFilters>,
    hides_idle: bool,
    options: SyncOptions,
}

impl RunParts<'_> {
    fn prepare_upload(self, source: &OsString, destination: &OsString) -> Result<ObjectRun> {
        let address = parse_address(destination)?;
        let from = self.open_source(source)?;
        let shown = address.to_string();
        let top = from.name.clone().filter(|_| from.is_dir).unwrap_or_default();
        let folder = join_folder(&address.folder, &top)?;
        let words = match top.is_empty() {
            true => format!("{} goes into '{shown}'", from.words),
            false => format!("{} goes into '{shown}', as '{}'", from.words, format_path(&top)),
        };
        let name = from.name.clone().unwrap_or_default();
        let source = UploadSource {
            source: (from.open)(&name),
            is_single: !from.is_dir,
            words,
            top,
            root: from.root.clone(),
        };
        self.finish_upload(source, &address, folder)
    }

    /// Several sources as one, which goes into the prefix itself.
    fn prepare_union_upload(self, sources: &[OsString], destination: &OsString) -> Result<ObjectRun> {
        let address = parse_address(destination)?;
        let mut parts = Vec::new();
        let mut words = Vec::new();
        let mut is_single = true;
        for source in sources {
            let from = self.open_source(source)?;
            is_single &= !from.is_dir;
            let root = from.root.as_ref().map(|root| root.as_os_str().as_bytes()).unwrap_or_default();
            let under = from.name.clone().filter(|_| from.is_dir);
            let rules = self
                .filters
                .create_named_filter(SyncSide::Source, root, under.as_deref().unwrap_or_default())
                .map_err(vellum_sync::SyncError::from)?;
            let name = from.name.clone().unwrap_or_default();
            words.push(from.words);
            parts.push(UnionPart { source: (from.open)(&name), rules, under, avoid: None });
        }
        let source = UploadSource {
            source: Box::new(SourceUnion::new(parts)),
            is_single,
            words: format!("{} go into '{address}'", format_source_list(&words)),
            top: Vec::new(),
            root: None,
        };
        let folder = address.folder.clone();
        self.finish_upload(source, &address, folder)
    }

    fn open_source(&self, source: &OsString) -> Result<SourceEndpoint> {
        if matches!(EndpointArg::parse_endpoint(source, self.context), EndpointArg::Host { .. }) {
            return Err(not_here_error("a directory of another host cannot be copied to a service"));
        }
        SourceArg::parse_source(source, self.args, self.context)?.open_source(self.args, self.context)
    }

    fn finish_upload(
        self,
        from: UploadSource,
        address: &ServiceAddress,
        folder: String,
    ) -> Result<ObjectRun> {
        let Self { args, context: _, filters, hides_idle, mut options } = self;
        let UploadSource { source, is_single, words, top, root } = from;
        // The whole bucket is looked at: a store of Vellum may lie above the prefix as well as below it.
        let bucket = self::open_objects(ServiceAddress { folder: String::new(), ..address.clone() }, args)?;
        check_not_in_store(&bucket, &folder, &address.to_string())?;
        // A destination is not listed in depth for the sake of one file.
        options.preserve.recursive &= !is_single;
        Ok(ObjectRun {
            objects: open_end(ServiceAddress { folder, ..address.clone() }, args)?,
            local: LocalSide::Source(source),
            direction: SyncDirection::Send,
            words,
            top,
            root,
            filters,
            options: RunOptions::new(options),
            hides_idle,
        })
    }

    fn prepare_download(self, source: &OsString, destination: &OsString) -> Result<ObjectRun> {
        let Self { args, context, filters, hides_idle, options } = self;
        let address = parse_address(source)?;
        let into = find_destination(destination, args, context)?;
        backups::check_backup_dir(&options, &into.path)?;
        let options = Arc::unwrap_or_clone(backups::relativize_backup_dir(&Arc::new(options), &into.path));
        let words = format!("what is in '{address}' goes into {}", into.words);
        Ok(ObjectRun {
            objects: open_end(address, args)?,
            local: LocalSide::Destination(into),
            direction: SyncDirection::Receive,
            words,
            top: Vec::new(),
            root: None,
            filters,
            options: RunOptions::new(options),
            hides_idle,
        })
    }
}

/// Where objects go on this host.
fn find_destination(typed: &OsStr, args: &Args, context: &CommandContext) -> Result<DestinationEndpoint> {
    let shape = SourceShape { name: None, is_dir: true };
    let path = match EndpointArg::parse_endpoint(typed, context) {
        EndpointArg::Path(path) => path,
        EndpointArg::Volume { directory, snapshot: None, path } => worktree_file_path(&directory, &path),
        EndpointArg::Host { .. } => {
            return Err(not_here_error("objects of a service cannot be copied to another host"));
        }
        EndpointArg::Volume { snapshot: Some(snapshot), .. } => {
            let message = format!("the snapshot {snapshot} never changes");
            return Err(CliError::usage_error(message, "a worktree is written to: VOLUME:/PATH"));
        }
    };
    let into = ends::find_local_destination(context, &path, shape, &args.preserve)?;
    ends::refuse_reserved_dir(&into.path)?;
    Ok(DestinationEndpoint { makes_path: args.places.mkpath, ..into })
}

fn parse_address(typed: &OsStr) -> Result<ServiceAddress> {
    let text = typed.to_str().ok_or_else(|| {
        CliError::usage_error(format!("'{}' is not UTF-8", format_path(typed.as_bytes())), "")
    })?;
    match StoreAddress::parse(text).map_err(VolumeError::from)? {
        StoreAddress::Service(address) if address.kind.is_read_only() => Err(CliError::usage_error(
            "a web server does not list its files",
            "'vellum sync' takes s3://, gs:// and az://",
        )),
        StoreAddress::Service(address) => Ok(address),
        StoreAddress::Directory(_) | StoreAddress::Memory(_) | StoreAddress::Sftp(_) => {
            Err(CliError::usage_error("an address of a service is needed", "s3://BUCKET/PREFIX"))
        }
    }
}

/// The folder of a directory that goes into another under its own name.
fn join_folder(folder: &str, name: &[u8]) -> Result<String> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.trim() == *name);
    match name {
        Some("") => Ok(folder.to_owned()),
        Some(name) if folder.is_empty() => Ok(name.to_owned()),
        Some(name) => Ok(format!("{folder}/{name}")),
        None => Err(CliError::usage_error(
            "the name of the source cannot be a part of keys",
            "end it with a slash, and give the prefix a name of its own",
        )),
    }
}

fn open_objects(address: ServiceAddress, args: &Args) -> Result<PlainObjects> {
    let credentials = args.effort.credentials.as_deref();
    let opened = PlainObjects::open(address, credentials, &RequestLimits::default());
    Ok(opened.map_err(VolumeError::from)?)
}

fn open_end(address: ServiceAddress, args: &Args) -> Result<ObjectEnd> {
    // Keys begin with the folder and a slash, which no path has.
    let folder_len = match address.folder.len() {
        0 => 0,
        len => len + 1,
    };
    let objects = open_objects(address, args)?;
    // Without a place for records, uploads begin anew each time.
    let objects = match find_user_state_dir() {
        Some(dir) => objects.with_upload_records(&dir.join("uploads")),
        None => objects,
    };
    Ok(ObjectEnd::new(objects, folder_len))
}
