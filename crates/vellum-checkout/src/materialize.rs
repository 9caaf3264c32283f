//! Carries out a plan: creates the files, directories and links of a snapshot in a plain directory.
//!
//! Invariant: a file appears, or is replaced, atomically; a file is replaced or removed only if it is the one that the
//! scan saw, otherwise it stays and is reported; nothing is written outside of the root (see [`crate::beneath`]). Each
//! step can be repeated.

mod dirs;
mod files;
mod unlock;
mod unseen;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use vellum_host::ProgressMeter;
use vellum_host::error_chain::format_error_chain;
use vellum_host::parallel::run_parallel;
use vellum_types::{FileKind, Ino};
use vellum_volume::tree::{DEPTH_MAX, InodeRecord};
use vellum_volume::{FsTree, Volume, VolumeError};

use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::plan::{FileWrite, LinkStep, PlanSteps, TargetEntry};
use crate::scan::{OpenTreeDirs, ScanEntryId, ScanTree};

pub use files::ForkEngine;

use dirs::TargetDirs;
use files::FileBatch;
use unlock::UnlockedDirs;
use unseen::HiddenDirs;
use vellum_host::beneath::{BeneathError, ExtendedAttribute, HeldDir, SpecialFile};
use vellum_host::metadata::{
    FreshFileDefaults, MetadataCaller, TargetMetadata, apply_fresh_metadata, apply_metadata,
};

/// Permissions of a directory while it is filled; it gets its own at the end.
const WORKING_MODE: u32 = 0o700;

/// A scanned directory whose files may be cloned.
pub struct CloneSource<'a> {
    /// The scan.
    pub tree: &'a ScanTree,
    /// The directory itself.
    pub dirs: OpenTreeDirs<'a>,
}

/// The state to be created, and where.
pub struct MaterializeRequest<'a> {
    /// The volume with the content.
    pub volume: &'a Volume,
    /// The state to be created.
    pub target: &'a FsTree,
    /// The directory that it is created in.
    pub root: &'a HeldDir,
    /// The directory of the state that corresponds to `root`.
    pub base: Ino,
    /// The scan of the present directory: what may be replaced and removed.
    pub now: Option<CloneSource<'a>>,
    /// A directory whose unchanged files may be cloned.
    pub clones: Option<CloneSource<'a>>,
    /// How files may be cloned; None: the best available method.
    pub engine: Option<ForkEngine>,
    /// Counts, and carries the request to stop.
    pub meter: &'a ProgressMeter,
}

/// The result.
#[derive(Debug, Default)]
pub struct MaterializeReport {
    /// Files written.
    pub written: u64,
    /// Entries removed.
    pub deleted: u64,
    /// Bytes of content in written files.
    pub bytes: u64,
    /// Files that share blocks with their source.
    pub reflinked: u64,
    /// Files copied from their source.
    pub copied: u64,
    /// Files written from chunks.
    pub from_chunks: u64,
    /// Entries that could not be given to their owner or group.
    pub owners_not_set: u64,
    /// The failures of single entries.
    pub problems: Vec<CheckoutProblem>,
}

/// Counters of all threads.
#[derive(Debug, Default)]
struct MaterializeCounters {
    bytes: AtomicU64,
    reflinked: AtomicU64,
    copied: AtomicU64,
    from_chunks: AtomicU64,
    owners_not_set: AtomicU64,
}

/// The execution of a plan.
struct MaterializeRun<'a> {
    what: &'a MaterializeRequest<'a>,
    dirs: TargetDirs<'a>,
    unseen: HiddenDirs<'a>,
    caller: MetadataCaller,
    counters: MaterializeCounters,
    done: MaterializeReport,
    /// Files that could not be created.
    failed: HashSet<Ino>,
}

impl MaterializeRequest<'_> {
    /// Carries out the steps.
    pub fn execute_steps(&self, steps: &PlanSteps) -> Result<MaterializeReport> {
        let mut work = MaterializeRun {
            what: self,
            dirs: TargetDirs::new(self.target, self.root, self.base),
            unseen: HiddenDirs::from_steps(steps),
            caller: MetadataCaller::current_process(),
            counters: MaterializeCounters::default(),
            done: MaterializeReport::default(),
            failed: HashSet::new(),
        };
        self.meter
            .set_expected_total((steps.writes.len() + steps.links.len() + steps.deletes.len()) as u64, 0);
        // Removals come first, because an entry of another kind may have the name of something that is
        // created. Links come after all files, since a link needs the file that it names. Directories get
        // their times last, because every change of an entry sets the time of its directory.
        let unlocked = UnlockedDirs::unlock_dirs(&work, steps);
        work.delete_entries(&steps.deletes)?;
        work.create_dirs(&steps.make_dirs)?;
        work.write_files(&steps.writes)?;
        work.create_links(&steps.links)?;
        work.apply_metadata_steps(&steps.metas)?;
        // The old permissions of opened directories are set again before `finish_dirs`, which replaces them
        // where the target has others.
        drop(unlocked);
        work.finish_dirs(steps)?;
        Ok(work.into_report())
    }
}

impl MaterializeRun<'_> {
    fn into_report(self) -> MaterializeReport {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut done = self.done;
        done.bytes = count(&self.counters.bytes);
        done.reflinked = count(&self.counters.reflinked);
        done.copied = count(&self.counters.copied);
        done.from_chunks = count(&self.counters.from_chunks);
        done.owners_not_set = count(&self.counters.owners_not_set);
        done.problems.sort_by(|a, b| a.path.cmp(&b.path));
        done
    }

    /// Removes entries, children before their directories: the reverse of the plan's order.
    fn delete_entries(&mut self, deletes: &[ScanEntryId]) -> Result<()> {
        let Some(now) = &self.what.now else { return Ok(()) };
        // From the end: directories stand before what is in them.
        for id in deletes.iter().rev() {
            self.what.meter.check_stopped()?;
            let entry = now.tree.entry(*id);
            // A directory needs no check: `rmdir` fails with ENOTEMPTY if it holds anything that the plan did
            // not remove.
            let removed = now.dirs.open_dir(id.dir).and_then(|dir| {
                if entry.kind() == FileKind::Dir {
                    return dir.remove_dir(entry.name());
                }
                check_unchanged(&dir, entry.name(), now.tree, *id)?;
                dir.unlink(entry.name())
            });
            match removed {
                Ok(()) => self.done.deleted += 1,
                // An earlier run that was interrupted, or the user, removed it already.
                Err(error) if error.is_not_found() => {}
                Err(error) if error.errno() == Some(rustix::io::Errno::NOTEMPTY) => {
                    let message = "it stays, because it contains files that no snapshot has".into();
                    self.done.problems.push(CheckoutProblem { path: entry.path(), message });
                }
                Err(error) => fail_or_record(error, entry.path(), &mut self.done)?,
            }
            self.what.meter.add_progress(1, 0);
        }
        Ok(())
    }

    fn create_dirs(&mut self, places: &[TargetEntry]) -> Result<()> {
        for place in places {
            self.what.meter.check_stopped()?;
            // This directory is created under a temporary name when its first file is written.
            if self.unseen.contains(place.ino) {
                continue;
            }
            let made = self.create_dir(place);
            self.record_outcome(place, made)?;
        }
        Ok(())
    }

    fn create_dir(&self, place: &TargetEntry) -> Result<()> {
        // The directory keeps this mode until `finish_dirs`: its own may not allow its owner to create
        // entries in it.
        let dir = self.dirs.open_dir(place.dir)?;
        match dir.create_dir(&place.name, WORKING_MODE) {
            // Made by an earlier, interrupted run, or something that was left out of the scan.
            Err(error) if error.errno() == Some(rustix::io::Errno::EXIST) => dir.open_dir(&place.name)?,
            made => return Ok(made?),
        };
        Ok(())
    }

    fn write_files(&mut self, writes: &[FileWrite]) -> Result<()> {
        let what = self.what;
        let from_store = writes.iter().filter(|write| what.find_clone_source(write).is_none());
        what.volume.announce_content(what.target, from_store.map(|write| write.place.ino));
        let mut rest = writes;
        let mut next = collect_next_batch(what, rest)?;
        while let Some(batch) = next {
            what.meter.check_stopped()?;
            rest = rest.get(batch.len()..).unwrap_or_default();
            let (outcomes, gathered) =
                run_parallel(|| rayon::join(|| batch.write_files(self), || collect_next_batch(what, rest)));
            // Directories of this batch get their names although the gathering of the next batch may have
            // failed: what was written so far is kept when the error ends the run.
            self.publish_filled_dirs(&batch)?;
            next = gathered?;
            for (write, outcome) in batch.writes().zip(outcomes) {
                match self.record_outcome(&write.place, outcome)? {
                    Some(problems) => {
                        self.done.written += 1;
                        self.record_problems(&write.place, problems)?;
                    }
                    None => drop(self.failed.insert(write.place.ino)),
                }
                self.what.meter.add_progress(1, 0);
            }
        }
        Ok(())
    }

    /// Gives the hidden directories that a batch has filled their names.
    fn publish_filled_dirs(&mut self, batch: &FileBatch<'_>) -> Result<()> {
        for filled in self.unseen.count_finished_files(batch.sizes()) {
            let place = filled.place;
            let named = self.dirs.open_dir(place.dir).and_then(|parent| filled.publish_name(&parent));
            for (name, error) in self.record_outcome(place, named)?.into_iter().flatten() {
                let path = self.what.target.entry_path(place.ino, &name)?;
                fail_or_record(error, path, &mut self.done)?;
            }
        }
        Ok(())
    }

    /// Records the result for one entry; an error that concerns it alone is reported.
    fn record_outcome<T>(&mut self, place: &TargetEntry, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_fatal_error(&error) => Err(error),
            Err(error) => {
                self.record_problems(place, vec![format_error_chain(&error)])?;
                Ok(None)
            }
        }
    }

    fn create_links(&mut self, links: &[LinkStep]) -> Result<()> {
        for link in links {
            self.what.meter.check_stopped()?;
            if self.failed.contains(&link.place.ino) {
                // The entry under the first name is not the file that this name is linked to.
                self.record_problems(&link.place, vec!["its first name could not be created".into()])?;
            } else {
                let made = self.create_link(link);
                if self.record_outcome(&link.place, made)?.is_some() {
                    self.done.written += 1;
                }
            }
            self.what.meter.add_progress(1, 0);
        }
        Ok(())
    }

    fn create_link(&self, link: &LinkStep) -> Result<()> {
        let from = self.dirs.open_dir(link.leader.0)?;
        let to = self.dirs.open_dir(link.place.dir)?;
        if link.replaces.is_none() && !link.overwrites {
            // `linkat` fails with EEXIST if something appeared there since the scan; it never replaces.
            return Ok(from.link_file(&link.leader.1, &to, &link.place.name)?);
        }
        self.check_replaced(&to, &link.place.name, link.replaces)?;
        Ok(from.link_replacing(&link.leader.1, &to, &link.place.name)?)
    }

    /// Fails unless the entry to be replaced is the one that the scan saw.
    fn check_replaced(&self, dir: &HeldDir, name: &[u8], replaces: Option<ScanEntryId>) -> Result<()> {
        if let (Some(id), Some(now)) = (replaces, &self.what.now) {
            check_unchanged(dir, name, now.tree, id)?;
        }
        Ok(())
    }

    fn apply_metadata_steps(&mut self, metas: &[(TargetEntry, ScanEntryId)]) -> Result<()> {
        for (place, there) in metas {
            // The content of these files stays. Only an entry that is still what the scan saw gets the old
            // metadata.
            let inode = self.what.target.read_inode(place.ino)?;
            let applied = self.dirs.open_dir(place.dir).and_then(|dir| {
                // Old times on a file that was edited meanwhile would hide the edit.
                self.check_replaced(&dir, &place.name, Some(*there))?;
                Ok(self.apply_metadata(&dir.hold_node(&place.name)?, &inode, true))
            });
            if let Some(problems) = self.record_outcome(place, applied)? {
                self.record_problems(place, problems)?;
            }
        }
        Ok(())
    }

    /// Sets permissions and times of directories last, the deepest first.
    fn finish_dirs(&mut self, steps: &PlanSteps) -> Result<()> {
        // A directory above may get a mode that forbids to open those below it, so they come first.
        for ino in self.deepest_first(&steps.dirs)? {
            let inode = self.what.target.read_inode(ino)?;
            let problems = match self.dirs.open_dir(ino) {
                Ok(dir) => self.apply_metadata(&dir.hold_self(), &inode, true),
                // The directory could not be created or was replaced meanwhile, which concerns it alone.
                Err(CheckoutError::Beneath(error)) => vec![format_error_chain(&error)],
                Err(other) => return Err(other),
            };
            if problems.is_empty() {
                continue;
            }
            let path = self.what.target.inode_path(ino)?;
            self.done
                .problems
                .extend(problems.into_iter().map(|message| CheckoutProblem { path: path.clone(), message }));
        }
        Ok(())
    }

    /// Orders directories by the number of those above them. Their paths are not compared: in a deep tree, each has a
    /// length in proportion to its depth.
    fn deepest_first(&self, dirs: &BTreeSet<Ino>) -> Result<Vec<Ino>> {
        let mut levels: HashMap<Ino, usize> = HashMap::new();
        let mut ordered = Vec::with_capacity(dirs.len());
        for dir in dirs {
            let mut way = Vec::new();
            let mut at = *dir;
            while at != Ino::ROOT && at != self.what.base && !levels.contains_key(&at) {
                way.push(at);
                // Parents come from the store. A damaged tree could have a cycle of them.
                if way.len() > DEPTH_MAX {
                    let problem =
                        format!("directory {dir} lies in itself, or deeper than {DEPTH_MAX} levels");
                    return Err(VolumeError::BadTree(problem).into());
                }
                at = self.what.target.expect_inode_attr(at)?.parent;
            }
            let mut level = levels.get(&at).copied().unwrap_or(0);
            for ino in way.into_iter().rev() {
                level += 1;
                levels.insert(ino, level);
            }
            ordered.push((level, *dir));
        }
        ordered.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ordered.into_iter().map(|(_, ino)| ino).collect())
    }

    /// Applies metadata; returns messages for what could not be applied.
    fn apply_metadata(
        &self,
        node: &vellum_host::beneath::HeldNode<'_>,
        inode: &InodeRecord,
        times: bool,
    ) -> Vec<String> {
        self.apply_inode_metadata(node, inode, times, None)
    }

    /// The same for a new file with known initial attributes.
    fn apply_fresh_metadata(
        &self,
        node: &vellum_host::beneath::HeldNode<'_>,
        inode: &InodeRecord,
        fresh: &FreshFileDefaults,
    ) -> Vec<String> {
        self.apply_inode_metadata(node, inode, true, Some(fresh))
    }

    fn apply_inode_metadata(
        &self,
        node: &vellum_host::beneath::HeldNode<'_>,
        inode: &InodeRecord,
        times: bool,
        fresh: Option<&FreshFileDefaults>,
    ) -> Vec<String> {
        let xattrs: Vec<ExtendedAttribute> = inode
            .xattrs
            .iter()
            .map(|(name, value)| ExtendedAttribute { name: name.clone(), value: value.clone() })
            .collect();
        let attr = &inode.attr;
        let times = times.then_some((attr.atime, attr.mtime));
        let wanted = TargetMetadata { mode: attr.mode, uid: attr.uid, gid: attr.gid, times, xattrs: &xattrs };
        let applied = match fresh {
            Some(fresh) => apply_fresh_metadata(node, &wanted, self.caller, fresh),
            None => apply_metadata(node, &wanted, self.caller),
        };
        let mut problems: Vec<_> = applied.problems.iter().map(|error| format_error_chain(error)).collect();
        if applied.owner_lost {
            self.counters.owners_not_set.fetch_add(1, Ordering::Relaxed);
            // Only root can give a file to another user (EPERM otherwise): for other users this is expected, and reported for
            // all files together.
            if self.caller.is_privileged() {
                problems.push(format!("its owner {}:{} could not be set", attr.uid, attr.gid));
            }
        }
        problems
    }

    fn record_problems(&mut self, place: &TargetEntry, problems: Vec<String>) -> Result<()> {
        if !problems.is_empty() {
            let path = self.target_path(place)?;
            self.done
                .problems
                .extend(problems.into_iter().map(|message| CheckoutProblem { path: path.clone(), message }));
        }
        Ok(())
    }

    fn target_path(&self, place: &TargetEntry) -> Result<Vec<u8>> {
        Ok(self.what.target.entry_path(place.dir, &place.name)?)
    }

    fn create_special(&self, dir: &HeldDir, name: &[u8], inode: &InodeRecord) -> Result<()> {
        match SpecialFile::from_kind(inode.attr.kind, inode.attr.rdev) {
            Some(special) => Ok(dir.create_special(name, special, WORKING_MODE)?),
            None => Ok(dir.create_symlink(name, &inode.attr.target)?),
        }
    }
}

fn collect_next_batch<'a>(
    what: &MaterializeRequest<'_>,
    writes: &'a [FileWrite],
) -> Result<Option<FileBatch<'a>>> {
    if writes.is_empty() { Ok(None) } else { FileBatch::collect_batch(what, writes).map(Some) }
}

/// Fails if an entry differs from the scan, because another process works on it.
fn check_unchanged(dir: &HeldDir, name: &[u8], tree: &ScanTree, id: ScanEntryId) -> Result<(), BeneathError> {
    let seen = tree.entry(id);
    let now = dir.stat(name)?;
    // There is no call that replaces a file on the condition that it is unchanged. A write between this check
    // and the rename is lost; the window is a few system calls.
    let same = if seen.stat().nlink == 1 && now.nlink == 1 {
        now.is_same_state(seen.stat())
    } else {
        // Another name of the file may have come or gone by this very plan, which changes its ctime and link count.
        now.is_same_file(seen.stat()) && (now.mtime, now.size) == (seen.stat().mtime, seen.stat().size)
    };
    if same { Ok(()) } else { Err(BeneathError::Replaced(name.into())) }
}

/// Whether an error ends the whole operation: a full or read-only disk, a failing store, or a request to stop. Other
/// errors concern one entry only: a damaged blob, a file in use, a directory without permission to write.
fn is_fatal_error(error: &CheckoutError) -> bool {
    use vellum_types::ErrorKind as K;
    let read_only = |errno| errno == Some(rustix::io::Errno::ROFS);
    match error {
        CheckoutError::Beneath(error) => error.kind() == K::NoSpace || read_only(error.errno()),
        CheckoutError::Path { source, .. } => {
            error.kind() == K::NoSpace || read_only(rustix::io::Errno::from_io_error(source))
        }
        // A damaged blob concerns the files that contain it. Other failures of the store would be repeated
        // for each file that follows.
        CheckoutError::Volume(error) => error.kind() != K::Corrupt,
        _ => true,
    }
}

fn fail_or_record(error: BeneathError, path: Vec<u8>, done: &mut MaterializeReport) -> Result<()> {
    let error = CheckoutError::from(error);
    if is_fatal_error(&error) {
        return Err(error);
    }
    done.problems.push(CheckoutProblem { path, message: format_error_chain(&error) });
    Ok(())
}
