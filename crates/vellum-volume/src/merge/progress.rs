//! A merge under way: the file in the state directory that remembers it until it is finished or taken back.
//!
//! Invariants: the file is written before the first file of the worktree changes and removed after the last, so that a
//! merge that was killed can go on or be taken back. It names a snapshot before that is in the store, so that none is left
//! there that nothing names; all other snapshots that it names are in the store.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use vellum_types::{Ino, SnapshotId};

use super::conflict::{ConflictKind, ConflictPolicies, ConflictPolicy, MergeConflict, MergedFileKey};
use crate::error::{Result, VolumeError};
use crate::state::{StateDir, WorktreeLock};
use crate::volume::Volume;

const VERSION: u32 = 1;
/// The file of the worktree that the state directory belongs to.
const OWN_FILE: &str = "merge.json";
/// Digits that tell the files of mounted worktrees apart.
const NAME_DIGITS: usize = 16;

/// How far a merge has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeStage {
    /// What no snapshot holds is being recorded: the worktree may stand on that snapshot or on the one before. There is no
    /// result yet.
    Saving,
    /// The snapshot of the result is being stored: it may be there or not. The worktree is as before.
    Storing,
    /// The worktree is being brought to the result.
    Applying,
    /// Somebody is to look at conflicts.
    Resolving,
    /// The worktree is being brought back to what it was.
    Aborting,
}

/// How a conflict was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictResolution {
    /// What this worktree had.
    Ours,
    /// What the other snapshot has.
    Theirs,
    /// Both versions.
    Both,
    /// What is in the worktree now.
    AsIs,
}

/// A conflict and what was decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackedConflict {
    /// The conflict.
    pub conflict: MergeConflict,
    /// How it was decided, if it was.
    pub resolution: Option<ConflictResolution>,
}

/// A merge under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeProgress {
    /// What the user called the other snapshot.
    pub name: String,
    /// The snapshot that the worktree was on.
    pub before: SnapshotId,
    /// The snapshot of what the worktree held, which may be the same. While that is being recorded: the one before.
    pub ours: SnapshotId,
    /// The other snapshot.
    pub theirs: SnapshotId,
    /// The base that the user chose.
    pub base: Option<SnapshotId>,
    /// The snapshot of the result, with conflicts where there are any. While there is none: the one that the worktree was
    /// on.
    pub merged: SnapshotId,
    /// The snapshot of the result with what was decided about conflicts, once something was.
    pub resolved: Option<SnapshotId>,
    /// Snapshots of results that took another one's place, or that are being stored: they may be in the store or not, and
    /// nothing needs them.
    pub leftovers: Vec<SnapshotId>,
    /// The note of the snapshot that ends the merge.
    pub note: String,
    /// How far it has come.
    pub stage: MergeStage,
    /// Its conflicts, by path.
    pub conflicts: Vec<TrackedConflict>,
}

#[derive(Serialize, Deserialize)]
struct ProgressFile {
    version: u32,
    name: String,
    before: String,
    ours: String,
    theirs: String,
    base: Option<String>,
    merged: String,
    resolved: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    leftovers: Vec<String>,
    note: String,
    stage: MergeStage,
    conflicts: Vec<ConflictEntry>,
}

#[derive(Serialize, Deserialize)]
struct ConflictEntry {
    kind: ConflictKind,
    path: Vec<u8>,
    other: Option<Vec<u8>>,
    base_ino: Option<u64>,
    first_ino: Option<u64>,
    second_ino: Option<u64>,
    resolution: Option<ConflictResolution>,
}

impl MergeProgress {
    /// The snapshots that nothing needs once the merge has ended.
    pub fn list_results(&self) -> impl Iterator<Item = &SnapshotId> {
        // Before there is a result, its place is taken by a snapshot of the user's.
        let merged = Some(&self.merged).filter(|_| self.stage != MergeStage::Saving);
        merged.into_iter().chain(&self.resolved).chain(&self.leftovers)
    }

    /// Whether nothing was done yet in the files of the worktree.
    pub fn is_unapplied(&self) -> bool {
        match self.stage {
            MergeStage::Saving | MergeStage::Storing => true,
            MergeStage::Applying | MergeStage::Resolving | MergeStage::Aborting => false,
        }
    }

    /// Conflicts on which nobody has decided.
    pub fn open_conflicts(&self) -> impl Iterator<Item = &MergeConflict> {
        self.conflicts.iter().filter(|tracked| tracked.resolution.is_none()).map(|tracked| &tracked.conflict)
    }

    /// What a merge has to be told to come to what was decided.
    #[must_use]
    pub fn collect_policies(&self) -> ConflictPolicies {
        let mut policies = ConflictPolicies::default();
        for TrackedConflict { conflict, resolution } in &self.conflicts {
            let policy = match resolution {
                Some(ConflictResolution::Ours) => ConflictPolicy::Prefer(self.ours),
                Some(ConflictResolution::Theirs) => ConflictPolicy::Prefer(self.theirs),
                Some(ConflictResolution::Both) => ConflictPolicy::KeepBoth,
                // What stands in the worktree is no version of either side, so that no policy names it.
                Some(ConflictResolution::AsIs) | None => continue,
            };
            policies.of_files.insert(conflict.file, policy);
        }
        policies
    }

    fn to_file(&self) -> ProgressFile {
        let entry = |tracked: &TrackedConflict| {
            let MergeConflict { path, kind, other, file } = tracked.conflict.clone();
            let number = |ino: Option<Ino>| ino.map(|ino| ino.0);
            ConflictEntry {
                kind,
                path,
                other,
                base_ino: number(file.base),
                first_ino: number(file.first),
                second_ino: number(file.second),
                resolution: tracked.resolution,
            }
        };
        ProgressFile {
            version: VERSION,
            name: self.name.clone(),
            before: self.before.to_string(),
            ours: self.ours.to_string(),
            theirs: self.theirs.to_string(),
            base: self.base.map(|id| id.to_string()),
            merged: self.merged.to_string(),
            resolved: self.resolved.map(|id| id.to_string()),
            leftovers: self.leftovers.iter().map(ToString::to_string).collect(),
            note: self.note.clone(),
            stage: self.stage,
            conflicts: self.conflicts.iter().map(entry).collect(),
        }
    }

    /// None if the file is not the note of a merge.
    fn from_file(file: ProgressFile) -> Option<Self> {
        let id = |text: &str| text.parse::<SnapshotId>().ok();
        let tracked = |entry: ConflictEntry| {
            let ConflictEntry { kind, path, other, resolution, .. } = entry;
            let file = MergedFileKey {
                base: entry.base_ino.map(Ino),
                first: entry.first_ino.map(Ino),
                second: entry.second_ino.map(Ino),
            };
            TrackedConflict { conflict: MergeConflict { path, kind, other, file }, resolution }
        };
        let optional_id =
            |text: &Option<String>| text.as_deref().map(|text| id(text).ok_or(())).transpose().ok();
        // Another version may mean something else by the same fields.
        (file.version == VERSION).then_some(())?;
        Some(Self {
            before: id(&file.before)?,
            ours: id(&file.ours)?,
            theirs: id(&file.theirs)?,
            base: optional_id(&file.base)?,
            merged: id(&file.merged)?,
            resolved: optional_id(&file.resolved)?,
            leftovers: file.leftovers.iter().map(|text| id(text)).collect::<Option<_>>()?,
            name: file.name,
            note: file.note,
            stage: file.stage,
            conflicts: file.conflicts.into_iter().map(tracked).collect(),
        })
    }
}

/// The file of a worktree. Mounted worktrees share a state directory: each has a file of its own.
fn merge_file_name(state: &StateDir, worktree: &str) -> Result<String> {
    if state.read_worktree_file()?.worktree == worktree {
        return Ok(OWN_FILE.into());
    }
    let hash = blake3::hash(worktree.as_bytes()).to_hex();
    Ok(format!("merge-{}.json", hash.get(..NAME_DIGITS).unwrap_or_default()))
}

/// The file whose lock a command has that merges in a worktree.
pub fn find_merge_lock(state: &StateDir, worktree: &str) -> Result<PathBuf> {
    let name = merge_file_name(state, worktree)?;
    Ok(match name.as_str() {
        // The lock for all commands.
        OWN_FILE => state.lock_file_path(),
        name => state.join(&lock_name(name)),
    })
}

fn lock_name(file: &str) -> String {
    format!("{}.lock", file.trim_end_matches(".json"))
}

/// Reads the note of the merge that is under way in a worktree, if one is. Needs no store.
pub fn read_progress(state: &StateDir, worktree: &str) -> Result<Option<MergeProgress>> {
    let name = merge_file_name(state, worktree)?;
    let Some(bytes) = state.read_file(&name)? else { return Ok(None) };
    let damaged = || {
        let error = std::io::Error::other("it is not the note of a merge");
        VolumeError::wrap_local_error(state.join(&name))(error)
    };
    let file = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
    MergeProgress::from_file(file).ok_or_else(damaged).map(Some)
}

/// Fails with [`VolumeError::MergeUnderWay`] if a merge is under way in a worktree, and what is asked for would lose track
/// of it. Needs no store.
pub fn check_no_merge_in(state: &StateDir, worktree: &str) -> Result<()> {
    match read_progress(state, worktree)? {
        Some(progress) => Err(VolumeError::MergeUnderWay { name: progress.name }),
        None => Ok(()),
    }
}

impl Volume {
    fn merge_file(&self) -> Result<String> {
        merge_file_name(&self.state, &self.worktree.worktree)
    }

    /// Reads the note of the merge that is under way in this worktree, if one is.
    pub fn read_merge_progress(&self) -> Result<Option<MergeProgress>> {
        read_progress(&self.state, &self.worktree.worktree)
    }

    /// Writes the note of a merge that is under way.
    pub fn write_merge_progress(&self, progress: &MergeProgress) -> Result<()> {
        self.state.write_json_file(&self.merge_file()?, &progress.to_file())
    }

    /// Takes the snapshot of a result out of the history, unless something needs it. One that is not there counts as
    /// taken out.
    pub fn forget_merge_result(&self, id: &SnapshotId) -> Result<()> {
        match self.discard_snapshot(id) {
            // It was never stored, or an interrupted command has done this.
            Ok(()) | Err(VolumeError::MissingRecord(_)) => Ok(()),
            // Somebody named it meanwhile, with a tag, a pin or a worktree: it stays, as any other snapshot does.
            Err(VolumeError::InUse { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until no other command merges in this worktree, and calls `waiting` once before it waits. For worktrees that
    /// are mounted: those of directories have a lock for all commands.
    pub fn lock_merge(&self, waiting: impl FnOnce()) -> Result<WorktreeLock> {
        let object = format!("a merge in the worktree {}", self.worktree.worktree);
        self.state.lock_named_file(&self.merge_lock_file()?, &object, waiting)
    }

    /// Locks out other commands that merge in this worktree; None if there is one.
    pub fn try_lock_merge(&self) -> Result<Option<WorktreeLock>> {
        self.state.try_lock_named_file(&self.merge_lock_file()?)
    }

    fn merge_lock_file(&self) -> Result<String> {
        Ok(lock_name(&self.merge_file()?))
    }

    /// Removes the note of a merge, which has ended.
    pub fn remove_merge_progress(&self) -> Result<()> {
        self.state.remove_file(&self.merge_file()?)
    }

    /// Fails with [`VolumeError::MergeUnderWay`] if a merge is under way in this worktree.
    pub fn check_no_merge(&self) -> Result<()> {
        check_no_merge_in(&self.state, &self.worktree.worktree)
    }
}
