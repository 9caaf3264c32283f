//! The server of a session: one end of a run, on its own host.
//!
//! Invariant: entries are reached only from the requested root, by the same calls as in a local run; no other path of
//! the client is used, except those of basis directories. When the client is gone, the current operation stops, and the
//! process ends.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vellum_host::ProgressMeter;
use vellum_host::beneath::HeldDir;
use vellum_volume::own_place::ReservedDirectory;

use super::client::HASH_LEN;
use super::feed;
use super::link::{IncomingMessage, SessionLink};
use super::message::{BeginRequest, FoundPath, ServerRole, SessionMessage, encode_error};
use super::wire_source::WireSource;
use crate::ends::local::LocalEnd;
use crate::ends::{ListingRequest, SourceEnd, SyncEnd, SyncSide};
use crate::error::{Result, SyncError};
use crate::local::receive::{DestinationEnd, StagingDirectories, SyncJob, SyncReport};
use crate::model::listing::{EntryFlags, ListingEntryId, NewListingEntry, OwnerNames, TreeListing};
use crate::model::options::{SyncOptions, resolve_missing_path};
use crate::plan::{SyncPlan, SyncStep};
use crate::remote::wire::{FrameKind, WireError, WireFrame};
use crate::rules::SyncFilters;

/// How often the client receives the progress.
const TELL: Duration = Duration::from_millis(200);

/// Serves the requests of `link`'s other side until the session ends. Relative paths begin at `home`.
pub fn serve_session(link: &Arc<SessionLink>, home: &Path) -> Result<()> {
    let mut server = SyncServer { link, home, end: None };
    loop {
        let request = match link.receive_message() {
            Ok(request) => request,
            // The end of the stream ends the session like a `Bye`. No report can reach the client, and its
            // last request was stopped when the connection was lost.
            Err(SyncError::Lost) => return Ok(()),
            Err(error) => return Err(error),
        };
        match server.handle_request(request) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(SyncError::Lost) => return Ok(()),
            Err(error) => {
                // The request failed, the connection did not. The client decides whether it goes on.
                let (kind, message) = encode_error(&error);
                link.send_message(&SessionMessage::Failed { kind, message })?;
            }
        }
    }
}

struct SyncServer<'l> {
    link: &'l Arc<SessionLink>,
    home: &'l Path,
    end: Option<ServedEnd>,
}

/// The end that is served.
struct ServedEnd {
    role: ServerRole,
    path: PathBuf,
    found: FoundPath,
    /// None: a destination that does not exist yet.
    local: Option<Arc<LocalEnd>>,
    listing: Option<Arc<TreeListing>>,
    /// The threads that send files; they end with the link or at the next listing.
    feeding: Option<Vec<std::thread::JoinHandle<()>>>,
}

impl SyncServer<'_> {
    /// Serves one request; false at the end of the session.
    fn handle_request(&mut self, request: IncomingMessage) -> Result<bool> {
        match request {
            IncomingMessage::Message(SessionMessage::Begin(begin)) => {
                // The client chose the time-out; the server was started without one.
                self.link.set_timeout(begin.timeout);
                // The threads that feed files refer to the listing of the end before.
                if let Some(mut before) = self.end.take() {
                    before.stop_feeding(self.link);
                }
                let (served, found) = ServedEnd::open(&begin, self.home)?;
                self.end = Some(served);
                self.link.send_message(&SessionMessage::Ready(found))?;
            }
            IncomingMessage::Message(SessionMessage::List { options, filters, top, owners }) => {
                self.list_entries(*options, *filters, top, owners)?;
            }
            // The message that follows determines the purpose of the numbers.
            IncomingMessage::Bulk(numbers) => match self.link.receive_message()? {
                IncomingMessage::Message(SessionMessage::Digest) => self.hash_files(&numbers)?,
                IncomingMessage::Message(SessionMessage::Take) => self.remove_entries(&numbers)?,
                _ => return Err(unexpected_error()),
            },
            IncomingMessage::Message(SessionMessage::CarryOut { options }) => self.execute_plan(&options)?,
            IncomingMessage::Message(SessionMessage::Bye) => return Ok(false),
            _ => return Err(unexpected_error()),
        }
        Ok(true)
    }

    fn served_end(&mut self) -> Result<&mut ServedEnd> {
        self.end.as_mut().ok_or_else(unexpected_error)
    }

    fn list_entries(
        &mut self,
        options: SyncOptions,
        filters: SyncFilters,
        top: Vec<u8>,
        owners: bool,
    ) -> Result<()> {
        let link = Arc::clone(self.link);
        let end = self.served_end()?;
        // Entries get new numbers. A request by an old number must not be answered from the new listing.
        end.stop_feeding(&link);
        let side = match end.role {
            ServerRole::Source => SyncSide::Source,
            ServerRole::Destination => SyncSide::Destination,
        };
        // A single entry is judged as one of the directory that it is in.
        let root = match (end.found, end.path.parent()) {
            (FoundPath::Single, Some(parent)) => parent,
            _ => &end.path,
        };
        let rules = Arc::new(filters).create_named_filter(side, root.as_os_str().as_bytes(), &top)?;
        let wish = ListingRequest { side, options: Arc::new(options), rules, top, avoid: None, owners };
        // Without the meter, the server would continue to list a large tree although the client is gone.
        let listing = run_until_stopped(&link, |meter| match &end.local {
            Some(local) => local.list_entries(&wish, meter),
            None if end.found == FoundPath::Nothing => {
                let mut listing = create_empty_listing();
                if owners {
                    listing.owners =
                        OwnerNames::read_local(side, &listing, !wish.options.preserve.numeric_ids);
                }
                Ok(listing)
            }
            None => Err(SyncError::End {
                what: "cannot write to the destination",
                path: end.path.as_os_str().as_bytes().to_vec(),
                why: "it is not a directory".to_owned(),
            }),
        })?;
        let listing = Arc::new(listing);
        // All that the answer allows the other side to send must be allowed before it can be there.
        link.allow_bulk_bytes(listing.len() * size_of::<u32>());
        match (&end.local, end.role) {
            (Some(local), ServerRole::Source) => {
                // The client asks for content as soon as it has the listing, so the threads run before the
                // listing is sent.
                link.feed.reset_requests();
                end.feeding = Some(start_feed_threads(&link, local, &listing));
            }
            _ => {
                link.set_own_listing(Some(Arc::clone(&listing)));
                link.allow_listing();
            }
        }
        end.listing = Some(Arc::clone(&listing));
        link.send_listing(&listing)
    }

    /// Removes entries of its listing that are still as they were listed.
    fn remove_entries(&mut self, numbers: &[u8]) -> Result<()> {
        let link = Arc::clone(self.link);
        let end = self.served_end()?;
        // Only entries of a source that this server listed can be removed, so the client can name nothing
        // that it was not shown.
        let (Some(listing), Some(local), ServerRole::Source) = (&end.listing, &end.local, end.role) else {
            return Err(unexpected_error());
        };
        // The client cannot check this: it does not know what lies on this host.
        if let Some(place) = ReservedDirectory::find_containing(&end.path) {
            return Err(SyncError::for_own_place(&end.path, &place));
        }
        let entries = decode_entry_ids(numbers, |id| listing.get(id).is_some_and(|entry| !entry.is_dir()))?;
        let taken = run_until_stopped(&link, |meter| local.remove_entries(listing, &entries, meter))?;
        link.send_message(&SessionMessage::Done(taken))
    }

    fn hash_files(&mut self, numbers: &[u8]) -> Result<()> {
        let link = Arc::clone(self.link);
        let end = self.served_end()?;
        let (Some(listing), Some(local)) = (&end.listing, &end.local) else { return Err(unexpected_error()) };
        let ids = decode_entry_ids(numbers, |id| listing.get(id).is_some_and(|entry| entry.is_file()))?;
        let hashes = run_until_stopped(&link, |meter| local.hash_files(listing, &ids, meter))?;
        for part in hashes.chunks(1 << 14) {
            let mut payload = Vec::with_capacity(part.len() * HASH_LEN);
            for hash in part {
                payload.push(u8::from(hash.is_some()));
                payload.extend(hash.unwrap_or_default());
            }
            link.send_frame(WireFrame::new(FrameKind::Digests, 0, payload))?;
        }
        link.send_message(&SessionMessage::Digested)
    }

    fn execute_plan(&mut self, options: &SyncOptions) -> Result<()> {
        // The client sends its listing and its plan directly after the request, without waiting for an
        // answer.
        let IncomingMessage::Listing(from) = self.link.receive_message()? else {
            return Err(unexpected_error());
        };
        let IncomingMessage::Steps(steps) = self.link.receive_message()? else {
            return Err(unexpected_error());
        };
        let link = Arc::clone(self.link);
        let home = self.home;
        let end = self.served_end()?;
        let to = end
            .listing
            .clone()
            .filter(|_| end.role == ServerRole::Destination)
            .ok_or_else(unexpected_error)?;
        // The staging directories that the user named are checked before the destination is created.
        if end.local.is_none() {
            StagingDirectories::check_dirs(&end.path, &options.writing)?;
        }
        let local = end.create_destination()?;
        let options = resolve_basis_paths(options, home);
        let report = run_until_stopped(&link, |meter| {
            execute_and_report(&link, &local, steps, [&from, &to], &options, meter)
        })?;
        // The plan changed the entries that the listing describes. A second plan needs a new listing.
        end.listing = None;
        link.send_message(&SessionMessage::Done(report))
    }
}

/// Works with a meter that the reading thread stops if the client requests it or is gone. It is taken back before an error
/// returns, or a late stop would hit the next operation.
fn run_until_stopped<T>(link: &SessionLink, work: impl FnOnce(&ProgressMeter) -> Result<T>) -> Result<T> {
    let meter = Arc::new(ProgressMeter::default());
    link.set_stop_meter(Some(Arc::clone(&meter)));
    let outcome = work(&meter);
    link.set_stop_meter(None);
    outcome
}

impl ServedEnd {
    fn open(begin: &BeginRequest, home: &Path) -> Result<(Self, FoundPath)> {
        let mut path = resolve_from_home(&begin.path, home);
        if begin.role == ServerRole::Destination {
            // `..` behind a directory that does not exist would fail now and mean something else once it is
            // created.
            path = resolve_missing_path(&path);
        }
        if begin.role == ServerRole::Destination
            && let Some(place) = ReservedDirectory::find_containing(&path)
        {
            return Err(SyncError::for_own_place(&path, &place));
        }
        let mut found = FoundPath::Directory;
        let opened = match begin.role {
            ServerRole::Source => LocalEnd::open(&path),
            ServerRole::Destination if begin.name.is_some() => {
                open_named_destination(&path, begin.follows_name)
            }
            ServerRole::Destination => LocalEnd::open_destination(&path),
        };
        let local = match (opened, begin.role) {
            (Ok(local), _) => Some(local),
            (Err(SyncError::Beneath(error)), ServerRole::Source) if error.is_not_a_directory() => {
                found = FoundPath::Single;
                Some(open_single_entry(&path, begin.name.as_deref())?)
            }
            // The directory is created when the plan is executed, so that a dry run creates nothing.
            (Err(SyncError::Beneath(error)), ServerRole::Destination) if error.is_not_found() => {
                found = FoundPath::Nothing;
                None
            }
            (Err(SyncError::Beneath(error)), ServerRole::Destination) if error.is_not_a_directory() => {
                found = FoundPath::Single;
                None
            }
            (Err(error), _) => return Err(error),
        };
        let served =
            Self { role: begin.role, path, found, local: local.map(Arc::new), listing: None, feeding: None };
        Ok((served, found))
    }

    /// Opens the destination, which is created if it does not exist.
    fn create_destination(&mut self) -> Result<Arc<LocalEnd>> {
        if let Some(local) = &self.local {
            return Ok(Arc::clone(local));
        }
        // The directory, and one above it, as in a local run.
        if let Some(parent) = self.path.parent()
            && HeldDir::open_trusted_root(parent).is_err_and(|error| error.is_not_found())
        {
            create_dir(parent)?;
        }
        let local = Arc::new(LocalEnd::new(create_dir(&self.path)?));
        self.local = Some(Arc::clone(&local));
        Ok(local)
    }

    fn stop_feeding(&mut self, link: &SessionLink) {
        if let Some(threads) = self.feeding.take() {
            link.feed.end_requests();
            // The panic of a thread was already reported on standard error.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

/// Resolves a path of the client.
fn resolve_from_home(path: &[u8], home: &Path) -> PathBuf {
    match path {
        b"" | b"~" => home.to_path_buf(),
        [b'~', b'/', rest @ ..] => home.join(OsStr::from_bytes(rest)),
        path => home.join(OsStr::from_bytes(path)),
    }
}

/// The options with the paths of basis directories resolved on this host.
fn resolve_basis_paths(options: &SyncOptions, home: &Path) -> SyncOptions {
    let mut options = options.clone();
    for dir in options.basis.iter_mut().flat_map(|basis| &mut basis.dirs) {
        *dir = resolve_missing_path(&resolve_from_home(dir, home)).into_os_string().into_encoded_bytes();
    }
    options
}

/// Decodes entry numbers, all of which must satisfy `wanted`.
fn decode_entry_ids(numbers: &[u8], wanted: impl Fn(ListingEntryId) -> bool) -> Result<Vec<ListingEntryId>> {
    let (numbers, rest) = numbers.as_chunks::<4>();
    let ids = numbers.iter().map(|number| {
        let id = ListingEntryId::from_u32(u32::from_le_bytes(*number));
        id.filter(|id| wanted(*id))
    });
    ids.collect::<Option<Vec<_>>>().filter(|_| rest.is_empty()).ok_or_else(unexpected_error)
}

/// Splits a path into its directory and its last name.
fn split_parent(path: &Path) -> Result<(&Path, &[u8])> {
    let name = path.file_name().ok_or_else(unexpected_error)?.as_bytes();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent, name))
}

/// Creates a directory, if it does not exist.
fn create_dir(path: &Path) -> Result<HeldDir> {
    let (parent, name) = split_parent(path)?;
    let parent = HeldDir::open_trusted_root(parent)?;
    match parent.create_dir(name, 0o777) {
        Ok(()) => {}
        Err(error) if error.errno() == Some(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // A descriptor that was opened with O_PATH cannot sync the directory's entries.
    Ok(parent.open_dir_to_read(name)?)
}

/// Opens a directory whose name is within the one that the user named: a symlink there must not lead elsewhere. A
/// symlink to a directory within the one that the user named is followed if the client requests it.
fn open_named_destination(path: &Path, follows_name: bool) -> Result<LocalEnd> {
    let (parent_path, name) = split_parent(path)?;
    let parent = HeldDir::open_trusted_root(parent_path)?;
    let opened = match parent.open_dir_to_read(name) {
        // A directory that may be searched and written to, but not read, can still be a destination.
        Err(error) if error.errno() == Some(rustix::io::Errno::ACCESS) => parent.open_dir(name),
        Err(error) if error.is_not_a_directory() && follows_name => {
            match resolve_within(parent_path, path) {
                Some(inside) => {
                    // The path must satisfy the same rules on symlinks as that of any destination.
                    HeldDir::open_trusted_root(path)?;
                    // It is opened by a path without symlinks, and beneath the parent: a symlink that
                    // replaces one of its components is not followed out of it.
                    parent.open_dir_within(&inside)
                }
                None => Err(error),
            }
        }
        opened => opened,
    };
    Ok(LocalEnd::new(opened?))
}

/// The target of `path`, without symlinks and relative to `base`; None if it is not within `base`.
#[expect(
    clippy::disallowed_methods,
    reason = "what it finds is opened beneath the base, by a path without symlinks"
)]
fn resolve_within(base: &Path, path: &Path) -> Option<Vec<u8>> {
    let target = path.canonicalize().ok()?;
    let inside = target.strip_prefix(base.canonicalize().ok()?).ok()?.as_os_str().as_bytes();
    Some(if inside.is_empty() { b".".to_vec() } else { inside.to_vec() })
}

/// Opens the single entry at a path.
fn open_single_entry(path: &Path, shown: Option<&[u8]>) -> Result<LocalEnd> {
    let (parent, name) = split_parent(path)?;
    let dir = HeldDir::open_root(parent)?;
    dir.stat(name)?;
    Ok(LocalEnd::from_single_entry(dir, name, shown.unwrap_or(name)))
}

/// The listing of a destination that does not exist.
fn create_empty_listing() -> TreeListing {
    TreeListing::new(&NewListingEntry { flags: EntryFlags::IMPLIED, ..NewListingEntry::unknown_dir() }, None)
}

fn start_feed_threads(
    link: &Arc<SessionLink>,
    local: &Arc<LocalEnd>,
    listing: &Arc<TreeListing>,
) -> Vec<std::thread::JoinHandle<()>> {
    let thread = |_| {
        let link = Arc::clone(link);
        let local = Arc::clone(local);
        let listing = Arc::clone(listing);
        std::thread::spawn(move || {
            let source: &dyn SourceEnd = &*local;
            feed::serve_requests(&link, source, &listing);
        })
    };
    (0..feed::THREADS).map(thread).collect()
}

fn execute_and_report(
    link: &Arc<SessionLink>,
    local: &LocalEnd,
    steps: Vec<SyncStep>,
    [from, to]: [&TreeListing; 2],
    options: &SyncOptions,
    meter: &ProgressMeter,
) -> Result<SyncReport> {
    let source = WireSource::new(Arc::clone(link));
    let plan = SyncPlan { steps, ..SyncPlan::default() };
    let mut options = options.clone();
    // Threads wait for the line, not for the machine.
    options.effort.jobs.get_or_insert(JOBS);
    let job = SyncJob { plan: &plan, source: &source, from, to, options: &options };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The thread that executes the plan reports to the meter only. This one sends what the meter says,
        // until the plan is done or the client is gone.
        let teller = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(TELL);
                let progress = meter.read_progress();
                let message = SessionMessage::Progress { items: progress.items, bytes: progress.bytes };
                if link.send_message(&message).is_err() {
                    return;
                }
            }
        });
        let outcome = local.execute_plan(&job, meter);
        done.store(true, Ordering::Relaxed);
        // It would otherwise sleep until its next report, and the scope would wait for it.
        teller.thread().unpark();
        outcome
    })
}

/// The default number of threads that receive.
pub(crate) const JOBS: u32 = 8;

fn unexpected_error() -> SyncError {
    SyncError::Wire(WireError::Unasked("a message that is not expected now"))
}
