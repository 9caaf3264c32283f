//! The walk: directories that workers share, and what is found in them.
//!
//! Invariant: a directory is queued when its entry is in the listing. A directory is held open while children wait to be opened through it, up to a number of them; beyond
//! it they are reached again from the root.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use vellum_checkout::beneath::{HeldDir, raise_open_files_limit};
use vellum_checkout::crew::WorkerPool;
use vellum_checkout::meta::FileStat;
use vellum_types::UnixTime;
use vellum_volume::ProgressMeter;

use super::follow::{AncestorDirectories, FollowedDirectory};
use super::visit::{DirectoryContents, DirectoryVisitor, fresh};
use super::{EntryFilter, ReadScanRules};
use crate::error::{Result, SyncError};
use crate::listing::{EntryDetail, EntryFlags, ListingEntryId, TimeGranularity, TreeListing, UnlistedEntry};
use crate::local::DirectoryRoute;
use crate::source::ListingRequest;

/// Share of the permitted open files that a walk takes for directories.
const HELD_SHARE: u64 = 4;
/// Most directories held open: a wide tree needs as many as it is deep, and few are deeper.
const HELD_MAX: u64 = 4096;
/// Longest rule file that is read, bytes: rules that a person wrote are far shorter.
const RULES_MAX: u64 = 4 << 20;

/// What FAT calls itself (`MSDOS_SUPER_MAGIC`).
const FAT: rustix::fs::FsWord = 0x4d44;

/// A directory to be visited.
struct WalkTask {
    id: ListingEntryId,
    name: Box<[u8]>,
    /// Through which it is opened; None: from the root.
    parent: Option<HeldDirectory>,
    judge: Arc<dyn EntryFilter>,
    /// Names above it, counted from where symlinks begin.
    depth: usize,
    /// It is what a symlink leads to.
    followed: bool,
    /// The directories above it, where symlinks are followed.
    above: Option<Arc<AncestorDirectories>>,
}

/// A directory held open, and counted.
#[derive(Clone)]
struct HeldDirectory(Arc<HeldCount>);

struct HeldCount {
    dir: HeldDir,
    count: Arc<AtomicUsize>,
}

impl Drop for HeldCount {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
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
    /// The number of each file with several names.
    groups: HashMap<(u64, u64), u32>,
    failure: Option<SyncError>,
}

/// One walk.
pub(super) struct DirectoryWalk<'a> {
    root: &'a HeldDir,
    looker: DirectoryVisitor<'a>,
    meter: &'a ProgressMeter,
    threads: usize,
    held: Arc<AtomicUsize>,
    held_max: usize,
    crew: WorkerPool<WalkTask>,
    /// It is a FAT, whose times of change have been finer than those of content.
    is_fat: bool,
    state: Mutex<WalkState>,
}

impl<'a> DirectoryWalk<'a> {
    pub fn new(root: &'a HeldDir, wish: &'a ListingRequest, meter: &'a ProgressMeter) -> Result<Self> {
        let stat = root.stat_self()?;
        let device = wish.options.one_filesystem.then_some(stat.dev);
        let looker = DirectoryVisitor::new(wish).staying_on(device);
        let mut detail = EntryDetail {
            xattrs: looker.attributes(&root.self_node(), &*wish.rules)?.into(),
            ..EntryDetail::default()
        };
        if wish.options.preserve.atimes {
            detail.atime = Some(stat.mtime);
        }
        let flags = EntryFlags::default().with_if(EntryFlags::IMPLIED, wish.implies_root());
        let mut listing = TreeListing::new(&fresh(&stat, flags), Some(detail));
        listing.begun = wish.options.stamps.then(now);
        let is_fat = rustix::fs::fstatfs(root).is_ok_and(|fs| fs.f_type == FAT);
        listing.granularity = if is_fat { TimeGranularity::COARSEST } else { granularity_of(&stat) };
        let judge = match wish.top.is_empty() {
            true => None,
            false => wish.rules.enter(b"", &|_| Ok(None))?,
        };
        let judge = judge.unwrap_or_else(|| wish.rules.clone());
        let (name, depth) = (wish.top.clone().into(), usize::from(!wish.top.is_empty()));
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
        let held_max = (raise_open_files_limit() / HELD_SHARE).min(HELD_MAX) as usize;
        Ok(Self {
            root,
            looker,
            meter,
            threads: wish.options.effort.threads(),
            held: Arc::default(),
            held_max,
            crew: WorkerPool::new(task),
            is_fat,
            state: Mutex::new(state),
        })
    }

    /// Whether nothing but the root is asked for: a directory that was named itself, without what is in it.
    fn is_alone(&self) -> bool {
        let wish = self.looker.wish();
        !wish.options.preserve.recursive && !wish.top.is_empty()
    }

    /// Visits everything. Others start to help when there is something to help with: most trees are small.
    pub fn run(self) -> Result<TreeListing> {
        if self.is_alone() {
            return Ok(self.state.into_inner().unwrap_or_else(PoisonError::into_inner).listing);
        }
        std::thread::scope(|scope| {
            self.crew.work_once(|task| self.perform(task));
            for _ in 1..self.threads.min(self.crew.waiting()) {
                scope.spawn(|| self.crew.work(|task| self.perform(task)));
            }
            self.crew.work(|task| self.perform(task));
        });
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.listing.linked_files = in_order(&state.groups);
        match state.failure {
            Some(failure) => Err(failure),
            None => Ok(state.listing),
        }
    }

    fn perform(&self, task: WalkTask) {
        if let Err(failure) = self.visit(task) {
            self.crew.give_up();
            self.lock().failure.get_or_insert(failure);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WalkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Visits a directory. What fails here ends the walk; what fails of the directory is in the listing.
    fn visit(&self, task: WalkTask) -> Result<()> {
        self.meter.check()?;
        let outcome = self.open(&task).and_then(|dir| {
            let above = self.above(&task, &dir)?;
            let read = |name: &[u8]| read_rules(&dir, name);
            let judge = task.judge.enter(&task.name, &read as ReadScanRules<'_>)?;
            let judge = judge.unwrap_or_else(|| task.judge.clone());
            let found =
                self.looker.visit(&FollowedDirectory { dir: &dir, judge: &*judge, depth: task.depth })?;
            Ok((dir, VisitedDirectory { id: task.id, judge, depth: task.depth, above }, found))
        });
        match outcome {
            Ok((dir, visited, found)) => self.store(dir, &visited, found),
            Err(error @ SyncError::Rules(_)) => Err(error),
            Err(error) => {
                let mut state = self.lock();
                let path = state.listing.entry(task.id).path();
                let vanished = error.kind() == vellum_types::ErrorKind::NotFound;
                state.listing.unlisted.push(UnlistedEntry { path, message: error.chain(), vanished });
                state.listing.mark(task.id, EntryFlags::UNREAD);
                Ok(())
            }
        }
    }

    fn open(&self, task: &WalkTask) -> Result<HeldDir> {
        if task.id == ListingEntryId::ROOT {
            // Opened anew: names are read once through one descriptor, and the root may be listed twice.
            return Ok(self.root.reopened()?);
        }
        let parent = match &task.parent {
            Some(HeldDirectory(parent)) => parent.dir.clone(),
            None => {
                let steps = {
                    let state = self.lock();
                    DirectoryRoute::to(&state.listing.entry(task.id).parent().unwrap_or(state.listing.root()))
                };
                steps.from(self.root)?
            }
        };
        Ok(match task.followed {
            true => parent.open_dir_followed_to_read(&task.name)?,
            false => parent.open_dir_to_read(&task.name)?,
        })
    }

    /// The directories down to this one, if symlinks are followed: none may lead to one of these.
    fn above(&self, task: &WalkTask, dir: &HeldDir) -> Result<Option<Arc<AncestorDirectories>>> {
        if !self.looker.links.any() {
            return Ok(None);
        }
        let stat = dir.stat_self()?;
        let id = (stat.dev, stat.ino);
        if task.followed && task.above.as_ref().is_some_and(|above| above.has(id)) {
            return Err(SyncError::Cycle);
        }
        Ok(Some(Arc::new(AncestorDirectories { id, above: task.above.clone() })))
    }

    /// Stores what was found in a directory and queues its subdirectories.
    fn store(&self, dir: HeldDir, visited: &VisitedDirectory, mut found: DirectoryContents) -> Result<()> {
        let id = visited.id;
        self.meter.add(found.files, 0);
        let hold = !found.dirs.is_empty() && self.held.load(Ordering::Relaxed) < self.held_max;
        let held = hold.then(|| {
            self.held.fetch_add(1, Ordering::Relaxed);
            HeldDirectory(Arc::new(HeldCount { dir, count: self.held.clone() }))
        });
        let mut state = self.lock();
        let state = &mut *state;
        for (place, device, inode) in &found.linked {
            let next = state.groups.len() as u32 + 1;
            let group = *state.groups.entry((*device, *inode)).or_insert(next);
            found.block.set_group(*place as usize, group);
        }
        let first = state.listing.attach(id, &mut found.block)?;
        for (place, stamp) in &found.stamps {
            state.listing.set_stamp(first.plus(*place), *stamp);
        }
        if !self.is_fat {
            state.listing.granularity.merge(found.granularity);
        }
        if found.keeps {
            state.listing.mark(id, EntryFlags::KEEPS);
        }
        if found.is_store {
            state.listing.mark(id, EntryFlags::STORE);
        }
        for place in &found.followed {
            state.listing.set_followed(first.plus(*place));
        }
        self.tell(&mut state.listing, id, &mut found);
        let task = |(place, name)| WalkTask {
            id: first.plus(place),
            name,
            parent: held.clone(),
            judge: visited.judge.clone(),
            depth: visited.depth + 1,
            followed: found.followed.binary_search(&place).is_ok(),
            above: visited.above.clone(),
        };
        // The last one queued is taken first: the walk keeps to the order of names, more or less.
        self.crew.add(found.dirs.into_iter().rev().map(task));
        Ok(())
    }

    /// Notes what could not be looked at, and what a killed run left.
    fn tell(&self, listing: &mut TreeListing, id: ListingEntryId, found: &mut DirectoryContents) {
        if found.unlisted.is_empty() && found.leftovers.is_empty() {
            return;
        }
        let mut prefix = listing.entry(id).path();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        if found.unlisted.iter().any(|unlisted| !unlisted.vanished) {
            listing.mark(id, EntryFlags::KEEPS);
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

/// How finely a filesystem keeps times, as far as its root tells.
fn granularity_of(stat: &FileStat) -> TimeGranularity {
    let mut granularity = TimeGranularity::COARSEST;
    granularity.see(stat.mtime);
    granularity.see(stat.ctime);
    granularity
}

/// Files by the numbers of their groups, which begin with 1.
fn in_order(groups: &HashMap<(u64, u64), u32>) -> Vec<(u64, u64)> {
    let mut files: Vec<(u32, (u64, u64))> = groups.iter().map(|(file, group)| (*group, *file)).collect();
    files.sort_unstable();
    files.into_iter().map(|(_, file)| file).collect()
}

/// The present moment.
fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime { secs: since.as_secs().try_into().unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

pub(crate) fn read_rules(dir: &HeldDir, name: &[u8]) -> Result<Option<Vec<u8>>> {
    use std::io::Read;
    let opened = match dir.open_file(name) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    opened.file.take(RULES_MAX).read_to_end(&mut text).map_err(SyncError::io("read"))?;
    Ok(Some(text))
}
