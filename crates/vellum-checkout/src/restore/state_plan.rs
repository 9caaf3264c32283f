//! The plan of a restore of a worktree whose present state is in the store, as that of a mount is: both states are compared
//! by path. (docs/restore-plans.md)
//!
//! Invariant: a plan changes nothing. Each name at which something is made, replaced, changed or removed has a step.

use std::collections::{BTreeMap, HashSet};

use vellum_map::MapRoot;
use vellum_types::{Dentry, FileKind, Ino, SnapshotId};
use vellum_volume::diff::{StateComparison, compare_inodes, is_path_within};
use vellum_volume::tree::{InodeRecord, PathBudget, path_components};
use vellum_volume::{FsTree, Volume};

use super::saved_plan::{SavedSteps, hash_inode, new_step};
use super::{RestoreRequest, RestoreStep, RestoreStepKind, SavedRestorePlan};
use crate::error::Result;
use crate::plan::collect_touched_dirs;

/// What a restore of a worktree would do whose present state is in the store.
#[derive(Debug)]
pub struct StateRestorePlan {
    /// What was asked for.
    pub request: RestoreRequest,
    /// The snapshot on which the worktree stands.
    pub head: Option<SnapshotId>,
    /// Paths that would be overwritten or removed, and that the snapshot on which the worktree stands does not hold as they
    /// are.
    pub unsaved: Vec<Vec<u8>>,
    /// All steps, by path.
    pub steps: Vec<RestoreStep>,
    /// What is at the paths of steps now.
    seen: BTreeMap<Vec<u8>, String>,
}

impl StateRestorePlan {
    /// Draws the plan. `now` is the tree of the worktree as it is, and `head` the snapshot on which it stands. Of the
    /// request, `only` has no meaning here.
    pub fn draw_plan(
        volume: &Volume,
        now: MapRoot,
        head: Option<SnapshotId>,
        request: &RestoreRequest,
    ) -> Result<Self> {
        let now = volume.open_tree(now);
        let target = volume.open_tree(request.target.record.root);
        let found = StatePlanner::new(&now, &target)?.plan_paths(&request.paths)?;
        let head_tree = head.map(|id| {
            Ok::<_, vellum_volume::VolumeError>(volume.open_tree(volume.catalog.get_record(&id)?.root))
        });
        let head_tree = head_tree.transpose()?;
        let mut seen = BTreeMap::new();
        let mut unsaved = Vec::new();
        for (path, ino) in found.lost {
            if !is_held(head_tree.as_ref(), &path, &now.read_inode(ino)?)? {
                unsaved.push(path.clone());
            }
            seen.insert(path, hash_inode(&volume.keys, &now, ino)?);
        }
        unsaved.sort();
        Ok(Self { request: request.clone(), head, unsaved, steps: found.steps, seen })
    }

    /// The file of the plan.
    pub fn save_plan(&self, volume: &Volume) -> Result<SavedRestorePlan> {
        let step = |step: &RestoreStep| {
            let seen = match step.kind {
                RestoreStepKind::Create => None,
                RestoreStepKind::Replace | RestoreStepKind::Metadata | RestoreStepKind::Delete => {
                    self.seen.get(&step.path).cloned()
                }
            };
            new_step(step.kind.into(), &step.path, seen)
        };
        let steps = self.steps.iter().map(step).collect();
        SavedRestorePlan::new(
            volume,
            &self.request,
            SavedSteps { head: self.head, steps, unsaved: self.unsaved.clone() },
        )
    }
}

/// Whether a state has the same at a path.
fn is_held(state: Option<&FsTree>, path: &[u8], inode: &InodeRecord) -> Result<bool> {
    let Some(state) = state else { return Ok(false) };
    // Whatever keeps the path from being found, it is not held there.
    let Ok((ino, _)) = state.find_path(path, "") else { return Ok(false) };
    Ok(!compare_inodes(&state.read_inode(ino)?, inode).has_change())
}

/// One place in both states.
struct PlannedPlace {
    path: Vec<u8>,
    now: Option<Dentry>,
    target: Option<Dentry>,
}

struct StatePlanner<'a> {
    now: &'a FsTree,
    target: &'a FsTree,
    /// The directories in which something differs.
    visits: HashSet<Ino>,
    steps: Vec<RestoreStep>,
    /// What is overwritten, removed, or gets other metadata.
    lost: Vec<(Vec<u8>, Ino)>,
    budget: PathBudget,
}

impl<'a> StatePlanner<'a> {
    fn new(now: &'a FsTree, target: &'a FsTree) -> Result<Self> {
        let (touched, _) = StateComparison { from: now, to: target }.find_touched_inodes()?;
        let visits = collect_touched_dirs(touched, [now, target])?;
        Ok(Self { now, target, visits, steps: Vec::new(), lost: Vec::new(), budget: PathBudget::default() })
    }

    fn plan_paths(mut self, paths: &[Vec<u8>]) -> Result<Self> {
        let whole = [Vec::new()];
        let paths = if paths.is_empty() { &whole[..] } else { paths };
        for (index, path) in paths.iter().enumerate() {
            // What lies in another one, or was named twice, is planned once.
            let is_planned = |(at, other): (usize, &Vec<u8>)| {
                at != index && is_path_within(path, other) && (other != path || at < index)
            };
            if !paths.iter().enumerate().any(is_planned) {
                self.plan_path(path)?;
            }
        }
        // Directories on the way to several paths are made once.
        self.steps.sort_by(|a, b| a.path.cmp(&b.path).then(a.kind.cmp(&b.kind)));
        self.steps.dedup();
        Ok(self)
    }

    fn plan_path(&mut self, path: &[u8]) -> Result<()> {
        let root = Dentry { ino: Ino::ROOT, kind: FileKind::Dir };
        let mut place = PlannedPlace { path: Vec::new(), now: Some(root), target: Some(root) };
        for name in path_components(path) {
            // Directories on the way are made if they are missing. Those that are there stay as they are.
            if let (None, Some(_)) = (place.now, place.target) {
                self.push_step(&place.path, RestoreStepKind::Create)?;
            }
            place = PlannedPlace {
                now: find_below(self.now, place.now, name)?,
                target: find_below(self.target, place.target, name)?,
                path: join_path(&place.path, name),
            };
        }
        let mut waiting = vec![place];
        while let Some(place) = waiting.pop() {
            self.plan_place(&place)?;
            self.push_places_below(&place, &mut waiting)?;
        }
        Ok(())
    }

    fn plan_place(&mut self, place: &PlannedPlace) -> Result<()> {
        let PlannedPlace { path, now, target } = place;
        match (now, target) {
            (None, None) => Ok(()),
            (None, Some(_)) => self.push_step(path, RestoreStepKind::Create),
            (Some(now), None) => self.push_loss(path, now.ino, RestoreStepKind::Delete),
            (Some(now), Some(target)) => {
                let is_dir = |entry: &Dentry| entry.kind == FileKind::Dir;
                if now.ino == target.ino && !self.visits.contains(&now.ino) {
                    return Ok(());
                }
                let old = self.now.read_inode(now.ino)?;
                let new = self.target.read_inode(target.ino)?;
                let differs = compare_inodes(&old, &new);
                // One of two names of a file, for a file of its own, or the reverse.
                let is_linked_otherwise =
                    !is_dir(now) && now.ino != target.ino && old.attr.nlink != new.attr.nlink;
                if differs.kind && (is_dir(now) || is_dir(target)) {
                    self.push_loss(path, now.ino, RestoreStepKind::Delete)?;
                    self.push_step(path, RestoreStepKind::Create)
                } else if differs.kind || differs.content || is_linked_otherwise {
                    self.push_loss(path, now.ino, RestoreStepKind::Replace)
                } else if differs.has_change() {
                    self.push_loss(path, now.ino, RestoreStepKind::Metadata)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn push_places_below(&self, place: &PlannedPlace, waiting: &mut Vec<PlannedPlace>) -> Result<()> {
        let dir =
            |entry: &Option<Dentry>| entry.filter(|entry| entry.kind == FileKind::Dir).map(|entry| entry.ino);
        let now = dir(&place.now);
        let target = dir(&place.target);
        if now.is_some_and(|now| target == Some(now) && !self.visits.contains(&now)) {
            return Ok(());
        }
        let mut entries: BTreeMap<Vec<u8>, (Option<Dentry>, Option<Dentry>)> = BTreeMap::new();
        for (name, entry) in now.map_or(Ok(Vec::new()), |dir| self.now.list_entries(dir))? {
            entries.entry(name).or_default().0 = Some(entry);
        }
        for (name, entry) in target.map_or(Ok(Vec::new()), |dir| self.target.list_entries(dir))? {
            entries.entry(name).or_default().1 = Some(entry);
        }
        waiting.extend(entries.into_iter().map(|(name, (now, target))| PlannedPlace {
            path: join_path(&place.path, &name),
            now,
            target,
        }));
        Ok(())
    }

    fn push_step(&mut self, path: &[u8], kind: RestoreStepKind) -> Result<()> {
        self.budget.charge_path(path)?;
        self.steps.push(RestoreStep { path: path.to_vec(), kind });
        Ok(())
    }

    fn push_loss(&mut self, path: &[u8], ino: Ino, kind: RestoreStepKind) -> Result<()> {
        self.lost.push((path.to_vec(), ino));
        self.push_step(path, kind)
    }
}

fn find_below(tree: &FsTree, dir: Option<Dentry>, name: &[u8]) -> Result<Option<Dentry>> {
    let Some(dir) = dir.filter(|dir| dir.kind == FileKind::Dir) else { return Ok(None) };
    Ok(tree.lookup_dentry(dir.ino, name)?)
}

fn join_path(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        [] => name.to_vec(),
        dir => [dir, b"/", name].concat(),
    }
}
