//! The walk, which combines the contents of directories to a listing.
//!
//! Invariant: a directory is queued when its entry is in the listing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use vellum_host::ProgressMeter;
use vellum_host::beneath::HeldDir;
use vellum_host::metadata::FileStat;
use vellum_host::parallel_walk::{ParallelWalk, WalkParent};
use vellum_types::{LookupResult, UnixTime};

use super::follow::{AncestorDirectories, DirectoryLinks, FollowedDirectory, LinksInDirectory};
use super::visit::{DirectoryContents, DirectoryVisitor, describe_file};
use super::{EntryFilter, ReadScanRules};
use crate::ends::ListingRequest;
use crate::ends::local::DirectoryRoute;
use crate::error::{Result, SyncError};
use crate::model::listing::{
    EntryDetail, EntryFlags, ListingEntryId, TimeGranularity, TreeListing, UnlistedEntry,
};
use crate::rules::{RULE_FILE_MAX, RuleError};

/// The magic number of FAT (`MSDOS_SUPER_MAGIC`).
const FAT: rustix::fs::FsWord = 0x4d44;

/// A directory to be visited.
struct WalkTask {
    id: ListingEntryId,
    name: Box<[u8]>,
    /// The directory through which it is opened; None: from the root.
    parent: Option<WalkParent>,
    judge: Arc<dyn EntryFilter>,
    /// The number of names above it, up to the directory that symlinks may not leave.
    depth: usize,
    /// It is the target of a symlink.
    followed: bool,
    /// The directories above it, where symlinks are followed.
    above: Option<Arc<AncestorDirectories>>,
}

/// A directory that was visited.
struct VisitedDirectory {
    id: ListingEntryId,
    judge: Arc<dyn EntryFilter>,
    depth: usize,
    above: Option<Arc<AncestorDirectories>>,
}

struct WalkState {
    listing: TreeListing,
    /// The link group of each file with several names.
    groups: HashMap<(u64, u64), u32>,
    failure: Option<SyncError>,
}

/// One walk.
pub(super) struct DirectoryWalk<'a> {
    root: &'a HeldDir,
    looker: DirectoryVisitor<'a>,
    meter: &'a ProgressMeter,
    walk: ParallelWalk<WalkTask>,
    dir_links: DirectoryLinks,
    /// It is a FAT, whose change times may be finer than its modification times.
    is_fat: bool,
    state: Mutex<WalkState>,
}

impl<'a> DirectoryWalk<'a> {
    pub fn new(root: &'a HeldDir, wish: &'a ListingRequest, meter: &'a ProgressMeter) -> Result<Self> {
        let stat = root.stat_self()?;
        let device = wish.options.one_filesystem.then_some(stat.dev);
        let looker = DirectoryVisitor::new(wish).with_device(device);
        let mut detail = EntryDetail {
            xattrs: looker.read_xattrs(&root.hold_self(), &*wish.rules)?.into(),
            ..EntryDetail::default()
        };
        // The access time of a directory is never copied, so any time serves.
        if wish.options.preserve.atimes {
            detail.atime = Some(stat.mtime);
        }
        let stored = looker.read_root_stat(&root.hold_self())?;
        let shown = stored.map_or(stat, |stored| stored.apply_to(stat));
        let flags = EntryFlags::default().union_if(EntryFlags::IMPLIED, wish.is_root_implied());
        let mut listing = TreeListing::new(&describe_file(&shown, flags), Some(detail));
        listing.begun = wish.options.stamps.then(current_time);
        let is_fat = rustix::fs::fstatfs(root).is_ok_and(|fs| fs.f_type == FAT);
        listing.granularity = if is_fat { TimeGranularity::COARSEST } else { detect_granularity(&stat) };
        // With a name of its own, the root is an entry of a directory above, in which rules hold as well.
        let judge = match wish.top.is_empty() {
            true => None,
            false => wish.rules.enter_dir(b"", &|_| Ok(None))?,
        };
        let judge = judge.unwrap_or_else(|| wish.rules.clone());
        let name = wish.top.clone().into();
        let depth = usize::from(!wish.top.is_empty());
        let task = WalkTask {
            id: ListingEntryId::ROOT,
            name,
            parent: None,
            judge,
            depth,
            followed: false,
            above: None,
        };
        let state = WalkState { listing, groups: HashMap::new(), failure: None };
        Ok(Self {
            root,
            looker,
            meter,
            walk: ParallelWalk::new(task, wish.options.effort.thread_count()),
            dir_links: DirectoryLinks::from_request(wish),
            is_fat,
            state: Mutex::new(state),
        })
    }

    /// Whether only the root is requested: a directory that was named itself, without its entries.
    fn is_root_only(&self) -> bool {
        let wish = self.looker.request();
        !wish.options.preserve.recursive && !wish.top.is_empty()
    }

    /// Visits all directories.
    pub fn run_walk(self) -> Result<TreeListing> {
        if self.is_root_only() {
            return Ok(self.state.into_inner().listing);
        }
        self.walk.run_walk(|task| self.process_task(task));
        let mut state = self.state.into_inner();
        state.listing.linked_files = sort_linked_files(&state.groups);
        match state.failure {
            Some(failure) => Err(failure),
            None => Ok(state.listing),
        }
    }

    fn process_task(&self, task: WalkTask) {
        if let Err(failure) = self.visit_dir(task) {
            // The listing would be incomplete. The other threads end after the directory that they are at.
            self.walk.give_up();
            self.lock().failure.get_or_insert(failure);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WalkState> {
        self.state.lock()
    }

    /// Visits a directory. An error ends the walk; errors of the directory itself are part of the listing.
    fn visit_dir(&self, task: WalkTask) -> Result<()> {
        self.meter.check_stopped()?;
        let outcome = self.open_dir(&task).and_then(|dir| {
            let above = self.extend_ancestors(&task, &dir)?;
            let read = |name: &[u8]| read_rule_file(&dir, name);
            let judge = task.judge.enter_dir(&task.name, &read as ReadScanRules<'_>)?;
            let judge = judge.unwrap_or_else(|| task.judge.clone());
            let path = self.path_for_links(task.id);
            let names = self.dir_links.names_in(&path);
            let dir_links = names.map(|names| LinksInDirectory { root: self.root, path: &path, names });
            let here = FollowedDirectory { dir: &dir, judge: &*judge, depth: task.depth, dir_links };
            let found = self.looker.visit_dir(&here)?;
            Ok((dir, VisitedDirectory { id: task.id, judge, depth: task.depth, above }, found))
        });
        match outcome {
            Ok((dir, visited, found)) => self.store_listing(dir, &visited, found),
            // Rules that cannot be read could have excluded or protected anything below, so the run must not
            // go on without them.
            Err(error @ SyncError::Rules(_)) => Err(error),
            Err(error) => {
                let mut state = self.lock();
                let path = state.listing.entry(task.id).path();
                let vanished = error.kind() == vellum_types::ErrorKind::NotFound;
                state.listing.unlisted.push(UnlistedEntry { path, message: error.format_chain(), vanished });
                // At a destination, the flag keeps the plan from writing into the directory or deleting it.
                state.listing.add_flags(task.id, EntryFlags::UNREAD);
                Ok(())
            }
        }
    }

    /// The path of a directory; empty if no symlink of a destination is treated as a directory.
    fn path_for_links(&self, id: ListingEntryId) -> Vec<u8> {
        if self.dir_links.is_empty() {
            return Vec::new();
        }
        self.lock().listing.entry(id).path()
    }

    fn open_dir(&self, task: &WalkTask) -> Result<HeldDir> {
        if task.id == ListingEntryId::ROOT {
            // Opened anew: names are read once through one descriptor, and the root may be listed twice.
            return Ok(self.root.reopen_to_read()?);
        }
        if task.parent.is_none() || task.followed {
            let path = self.path_for_links(task.id);
            if !path.is_empty() {
                return Ok(self.root.open_dir_within(&path)?);
            }
        }
        let parent = match &task.parent {
            Some(parent) => parent.dir().clone(),
            None => {
                let steps = {
                    let state = self.lock();
                    DirectoryRoute::for_dir(
                        &state.listing.entry(task.id).parent().unwrap_or(state.listing.root()),
                    )
                };
                steps.open_from(self.root)?
            }
        };
        Ok(match task.followed {
            true => parent.open_dir_to_read_following(&task.name)?,
            false => parent.open_dir_to_read(&task.name)?,
        })
    }

    /// The directories down to this one, if symlinks are followed: no symlink may lead to one of them.
    fn extend_ancestors(&self, task: &WalkTask, dir: &HeldDir) -> Result<Option<Arc<AncestorDirectories>>> {
        if !self.looker.links.is_following() {
            return Ok(None);
        }
        let stat = dir.stat_self()?;
        let id = (stat.dev, stat.ino);
        // Only a symlink can lead back to a directory above. Comparing device and inode finds it however it
        // is named.
        if task.followed && task.above.as_ref().is_some_and(|above| above.contains_dir(id)) {
            return Err(SyncError::Cycle);
        }
        Ok(Some(Arc::new(AncestorDirectories { id, above: task.above.clone() })))
    }

    /// Stores the contents of a directory, and queues its subdirectories.
    fn store_listing(
        &self,
        dir: HeldDir,
        visited: &VisitedDirectory,
        mut found: DirectoryContents,
    ) -> Result<()> {
        let id = visited.id;
        self.meter.add_progress(found.files, 0);
        // Before the lock: giving up a directory closes a descriptor, which can wait for the filesystem.
        let held = if found.dirs.is_empty() { None } else { self.walk.hold_dir(dir) };
        let mut state = self.lock();
        let state = &mut *state;
        for (place, device, inode) in &found.linked {
            let next = state.groups.len() as u32 + 1;
            let group = *state.groups.entry((*device, *inode)).or_insert(next);
            found.block.set_link_group(*place as usize, group);
        }
        // Entries get their final numbers here, under the lock. Their subdirectories are queued with these
        // numbers and are attached later in any order.
        let first = state.listing.attach_block(id, &mut found.block)?;
        for (place, stamp) in &found.stamps {
            state.listing.set_change_stamp(first.offset_by(*place), *stamp);
        }
        if !self.is_fat {
            state.listing.granularity.merge_finer(found.granularity);
        }
        if found.keeps {
            state.listing.add_flags(id, EntryFlags::KEEPS);
        }
        if found.is_store {
            state.listing.add_flags(id, EntryFlags::STORE);
        }
        for place in &found.followed {
            state.listing.set_followed(first.offset_by(*place));
        }
        self.record_unlisted(&mut state.listing, id, &mut found);
        let task = |(place, name)| WalkTask {
            id: first.offset_by(place),
            name,
            parent: held.clone(),
            judge: visited.judge.clone(),
            depth: visited.depth + 1,
            followed: found.followed.binary_search(&place).is_ok(),
            above: visited.above.clone(),
        };
        self.walk.add_dirs(found.dirs.into_iter().map(task));
        Ok(())
    }

    /// Adds entries that could not be examined, and files that a killed run left.
    fn record_unlisted(&self, listing: &mut TreeListing, id: ListingEntryId, found: &mut DirectoryContents) {
        if found.unlisted.is_empty() && found.leftovers.is_empty() {
            return;
        }
        let mut prefix = listing.entry(id).path();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        // An entry that could not be examined exists, so its directory cannot be removed.
        if found.unlisted.iter().any(|unlisted| !unlisted.vanished) {
            listing.add_flags(id, EntryFlags::KEEPS);
        }
        for mut unlisted in found.unlisted.drain(..) {
            unlisted.path = [&prefix[..], &unlisted.path].concat();
            listing.unlisted.push(unlisted);
        }
        for name in found.leftovers.drain(..) {
            listing.leftovers.push([&prefix[..], &name].concat());
        }
    }
}

/// The resolution of a filesystem's times, as far as its root shows it.
fn detect_granularity(stat: &FileStat) -> TimeGranularity {
    let mut granularity = TimeGranularity::COARSEST;
    granularity.observe_time(stat.mtime);
    granularity.observe_time(stat.ctime);
    granularity
}

/// The device and inode of each link group; groups are numbered from 1.
fn sort_linked_files(groups: &HashMap<(u64, u64), u32>) -> Vec<(u64, u64)> {
    let mut files: Vec<(u32, (u64, u64))> = groups.iter().map(|(file, group)| (*group, *file)).collect();
    files.sort_unstable();
    files.into_iter().map(|(_, file)| file).collect()
}

/// The current time.
fn current_time() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime { secs: since.as_secs().try_into().unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

/// Reads a rule file; None if there is none. Fails if it is too long.
pub(crate) fn read_rule_file(dir: &HeldDir, name: &[u8]) -> Result<Option<Vec<u8>>> {
    use std::io::Read;
    let Some(opened) = dir.open_file(name).none_if_missing()? else { return Ok(None) };
    let mut text = Vec::new();
    // One byte more than the limit shows that the file is too long, even if it grows meanwhile.
    let mut limited = opened.file.take(RULE_FILE_MAX + 1);
    limited.read_to_end(&mut text).map_err(SyncError::wrap_io_error("read"))?;
    RuleError::check_file_len(name, text.len() as u64)?;
    Ok(Some(text))
}
