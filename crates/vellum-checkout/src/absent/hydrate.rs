//! Makes absent paths present.
//!
//! Invariant: nothing that is in the directory is changed, but for the metadata of directories that stand in the place of
//! absent ones. The list shrinks when the files are durable: killed before, they are present all the same, and the rest is
//! absent. Until the same is run again, a note keeps snapshots from shortening the list: the metadata of the directories may
//! not be what they are to be, and only those of listed ones are left to the last snapshot.

use std::collections::{HashMap, HashSet};

use vellum_host::ProgressMeter;
use vellum_host::escape::format_path;
use vellum_map::KeySpan;
use vellum_types::{Dentry, FileKind, Ino, MapKeyRef};
use vellum_volume::tree::path_components;
use vellum_volume::{FsTree, VolumeError};

use super::{AbsentPaths, join_name, read_list_file};
use crate::error::{CheckoutError, CheckoutProblem, Result};
use crate::materialize::MaterializeRequest;
use crate::plan::{CurrentDir, PlanInput, PlanSteps, WantedPart};
use crate::restore::remove_stale_temp_files;
use crate::worktree::{CapturedDirectory, CheckoutWorktree};

/// Name of the note in the state directory: the list of the paths that are being made present.
const NOTE_FILE: &str = "hydrating";

/// What became present.
#[derive(Debug, Default)]
pub struct HydrateReport {
    /// Files written.
    pub written: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// What could not be made, and is absent still.
    pub problems: Vec<CheckoutProblem>,
}

impl CheckoutWorktree {
    /// Makes what is absent at and below some paths present, as the last snapshot has it. The caller holds the lock.
    pub fn hydrate_paths(&self, paths: &[Vec<u8>], meter: &ProgressMeter) -> Result<HydrateReport> {
        self.check_settled()?;
        let absent = self.read_absent_paths()?;
        let Some(head) = self.head_snapshot()?.filter(|_| !absent.is_empty()) else {
            // Nothing is absent. A mistyped path is an error all the same.
            self.check_named_paths(paths)?;
            return Ok(HydrateReport::default());
        };
        let base = self.volume.open_tree(head.record.root);
        let mut wanted = self.select_wanted(paths, &absent, &base)?;
        // What an earlier command began is finished with it.
        let begun = self.read_hydrating_paths()?;
        for path in begun.iter() {
            if absent.is_concerned(path) && base.find_path(path, "").is_ok() {
                wanted.add_path(path);
            }
        }
        if wanted.is_empty() {
            return Ok(HydrateReport::default());
        }
        let looked = self.capture_unstored(&[], meter)?;
        // A file with another name in the directory is linked, not written again: it is one file in the snapshot.
        let links = find_present_names(&looked, &base, &wanted)?;
        let now = CurrentDir { tree: &looked.tree, captured: &looked.captured, state: &looked.state };
        let part = WantedPart::Missing { wanted: &wanted, links: &links };
        let planner =
            PlanInput { target: &base, now: Some(now), paths: &[], base: Ino::ROOT, elsewhere: false, part };
        let steps = planner.build_plan()?;
        check_not_moved(&looked, &base, &steps)?;
        // Only a run that was killed leaves temporary files.
        if !begun.is_empty() {
            remove_stale_temp_files(&looked, &self.root)?;
        }
        // Before the first file: from here on, a kill leaves directories whose metadata are not what they are to be.
        self.write_list_file(NOTE_FILE, &wanted)?;
        let done = MaterializeRequest {
            volume: &self.volume,
            target: &base,
            root: &self.root,
            base: Ino::ROOT,
            // Nothing that is here may be replaced or removed.
            now: None,
            clones: None,
            engine: None,
            meter,
        }
        .execute_steps(&steps)?;
        let mut problems = done.problems;
        problems.extend(steps.blocked.iter().map(|path| CheckoutProblem {
            path: path.clone(),
            message:
                "what is here is not the directory that is absent: move it away, or take a snapshot".into(),
        }));
        // Durable before the note goes and the list shrinks: until then, a repetition makes anew what a power cut took.
        self.sync_files()?;
        self.write_list_file(NOTE_FILE, &AbsentPaths::default())?;
        self.settle_hydrated(absent, &wanted, &base, &problems)?;
        Ok(HydrateReport { written: done.written, bytes: done.bytes, problems })
    }

    /// Takes off the list what is there now.
    fn settle_hydrated(
        &self,
        mut absent: AbsentPaths,
        wanted: &AbsentPaths,
        base: &FsTree,
        problems: &[CheckoutProblem],
    ) -> Result<()> {
        wanted.iter().try_for_each(|path| absent.split_off(path, base))?;
        for problem in problems {
            // Metadata of a file that is there may have been refused.
            let is_there = self
                .root
                .resolve_parent(&problem.path)
                .and_then(|(dir, name)| dir.stat(name))
                .is_ok_and(|found| found.kind != FileKind::Dir);
            if !is_there && wanted.is_concerned(&problem.path) {
                absent.add_path(&problem.path);
            }
        }
        self.end_absent_change(absent)
    }

    /// The absent paths at and below those that are named, and the ignore files on the way to them.
    fn select_wanted(&self, paths: &[Vec<u8>], absent: &AbsentPaths, base: &FsTree) -> Result<AbsentPaths> {
        let mut wanted = AbsentPaths::default();
        let rule_files = self.scan_exclusions()?.rule_files;
        for path in paths {
            let Some(above) = absent.find_covering(path) else {
                if !absent.is_concerned(path) {
                    self.check_named_paths(std::slice::from_ref(path))?;
                }
                absent.list_within(path).for_each(|path| wanted.add_path(path));
                continue;
            };
            // What lies below an absent path is known to the snapshot only, so that is where a mistyped path shows.
            base.find_path(path, "the last snapshot")?;
            let mut here = above.to_vec();
            let rest = path.get(above.len()..).unwrap_or_default();
            for name in path_components(rest) {
                for file in &rule_files {
                    // Without the rules of the directories above, files that these ignore would be new ones for the
                    // next snapshot.
                    let rules = join_name(&here, file.as_bytes());
                    if base.find_path(&rules, "").is_ok() {
                        wanted.add_path(&rules);
                    }
                }
                here = join_name(&here, name);
            }
            wanted.add_path(path);
        }
        Ok(wanted)
    }

    /// The paths that a command was making present when it was killed, or failed.
    pub fn read_hydrating_paths(&self) -> Result<AbsentPaths> {
        read_list_file(&self.volume.state, NOTE_FILE)
    }

    /// Leaves paths out of a hydration that was interrupted.
    pub(super) fn forget_hydration<'p>(&self, paths: impl Iterator<Item = &'p [u8]>) -> Result<()> {
        let begun = self.read_hydrating_paths()?;
        let mut left = begun.clone();
        paths.for_each(|path| left.remove_within(path));
        if left == begun { Ok(()) } else { self.write_list_file(NOTE_FILE, &left) }
    }

    /// Fails if a path is neither in the directory nor in the last snapshot.
    pub(super) fn check_named_paths(&self, paths: &[Vec<u8>]) -> Result<()> {
        let head = self.head_snapshot()?;
        let base = head.as_ref().map(|head| self.volume.open_tree(head.record.root));
        self.check_paths(paths, base.as_ref(), None)
    }

    /// Fails if a restore was interrupted: the directory is a mixture of two snapshots.
    pub(super) fn check_settled(&self) -> Result<()> {
        match self.find_interrupted_restore()? {
            None => Ok(()),
            Some(interrupted) => Err(CheckoutError::Interrupted(self.volume.short_id(&interrupted.target)?)),
        }
    }
}

/// Fails if a directory that is to be made is in the directory under another name: what is absent belongs there.
fn check_not_moved(looked: &CapturedDirectory, base: &FsTree, steps: &PlanSteps) -> Result<()> {
    let here: HashSet<Ino> = looked.tree.dirs().map(|dir| looked.captured.number_of_dir(&dir)).collect();
    match steps.make_dirs.iter().find(|place| here.contains(&place.ino)) {
        None => Ok(()),
        Some(place) => Err(CheckoutError::Moved(format_path(&base.inode_path(place.ino)?))),
    }
}

/// For each file of the wanted paths that has several names, one that is in the directory, where the last snapshot has it.
/// All names of the snapshot are looked through if there is such a file.
fn find_present_names(
    looked: &CapturedDirectory,
    base: &FsTree,
    wanted: &AbsentPaths,
) -> Result<HashMap<Ino, (Ino, Vec<u8>)>> {
    let mut links = HashMap::new();
    let mut linked = HashSet::new();
    for path in wanted.iter() {
        let Ok((ino, _)) = base.find_path(path, "") else { continue };
        collect_linked_files(base, ino, &mut linked)?;
    }
    // Names are stored by directory, so the other names of a file are found only by reading all of them.
    if linked.is_empty() {
        return Ok(links);
    }
    let broken = || VolumeError::wrap_decode_error("an entry of the last snapshot");
    for entry in base.map_view().read_range(base.nodes(), KeySpan::all_keys())? {
        let entry = entry?;
        let MapKeyRef::Dentry(dir, name) = MapKeyRef::parse(&entry.key).map_err(broken())? else { continue };
        let ino = Dentry::decode(&entry.value).map_err(broken())?.ino;
        if !linked.contains(&ino) || links.contains_key(&ino) {
            continue;
        }
        let path = base.entry_path(dir, name)?;
        let there = looked.tree.find_entry_at(&path);
        if there.is_some_and(|there| looked.captured.number_of_entry(there.id()) == ino) {
            links.insert(ino, (dir, name.to_vec()));
        }
    }
    Ok(links)
}

/// The files at and below an inode that have several names.
fn collect_linked_files(base: &FsTree, ino: Ino, linked: &mut HashSet<Ino>) -> Result<()> {
    let mut seen = HashSet::new();
    let mut waiting = vec![ino];
    while let Some(ino) = waiting.pop() {
        let attr = base.expect_inode_attr(ino)?;
        if attr.kind != FileKind::Dir {
            if attr.nlink > 1 {
                linked.insert(ino);
            }
        } else if seen.insert(ino) {
            waiting.extend(base.list_entries(ino)?.into_iter().map(|(_, dentry)| dentry.ino));
        }
    }
    Ok(())
}
