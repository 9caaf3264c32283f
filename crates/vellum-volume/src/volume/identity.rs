//! The identity of a checked-out worktree: distinguishes its directory from copies, so that two directories never
//! change one head.
//!
//! A worktree whose store lies elsewhere has a random mark, in its own file and in its ref. Only the directory that has
//! the ref's mark changes the worktree. A directory that is not the one that is recorded (another path, another inode) takes
//! the worktree over with a new mark, unless the one that is recorded is still there: then it is a copy.
//!
//! Invariant: after a takeover the directory that had the worktree before can change it no more, wherever it is. Deliberately
//! absent: worktrees whose store lies in their state directory, since a copy of these has a store of its own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vellum_host::process::host_name;
use vellum_types::SnapshotId;

use super::Volume;
use crate::error::{Result, VolumeError};
use crate::refs::{RefKind, WorktreeHead, WorktreeMark, check_ref_name};
use crate::state::{DirectoryIdentity, STATE_DIR, StateDir, WorktreeFile};

/// What a directory is to the worktree that it says it is.
#[derive(Debug, PartialEq, Eq)]
enum DirectoryStanding {
    /// The one that is recorded.
    Recorded,
    /// The one that the ref names, whose own file was not written before a crash.
    Interrupted,
    /// The only one that is left, moved or restored from a backup; or the first that asks, of those without a mark.
    Moved,
    /// A copy of the one in this place.
    Copy(PathBuf),
    /// Another directory has taken the worktree over.
    TakenOver,
}

impl DirectoryIdentity {
    /// A new identity for the directory of `state`, as it is now.
    pub fn new(state: &StateDir) -> Result<Self> {
        Self::new_with_mark(state, &WorktreeMark::generate())
    }

    fn new_with_mark(state: &StateDir, mark: &WorktreeMark) -> Result<Self> {
        let (path, inode) = locate_state_dir(state)?;
        Ok(Self { mark: mark.to_string(), inode, path: path.display().to_string() })
    }

    /// The mark, if it is one.
    #[must_use]
    pub fn mark(&self) -> Option<WorktreeMark> {
        self.mark.parse().ok()
    }
}

/// The path of a worktree's directory without symlinks, and the inode of its state directory.
fn locate_state_dir(state: &StateDir) -> Result<(PathBuf, u64)> {
    let look = || Ok((fs::canonicalize(state.root())?, fs::metadata(state.path())?.ino()));
    look().map_err(VolumeError::wrap_local_error(state.path()))
}

/// Whether the store is a part of the state directory, so that whoever copies one copies the other.
pub(super) fn has_own_store(file: &WorktreeFile) -> bool {
    !file.store.contains("://") && !Path::new(&file.store).is_absolute()
}

impl Volume {
    /// Sees that this directory is the worktree that it says it is, and takes the worktree over if it was moved. Fails with
    /// [`VolumeError::CopiedWorktree`] if it is a copy. The caller holds the worktree's lock.
    pub fn confirm_own_dir(&self) -> Result<()> {
        let file = self.state.read_worktree_file()?;
        let head = self.read_own_head()?;
        // A copy of this directory has a copy of the store: both are worktrees, each of a volume of its own.
        if has_own_store(&file) {
            return self.update_recorded_place(&head);
        }
        match self.read_dir_standing(&file, &head)? {
            DirectoryStanding::Recorded => Ok(()),
            DirectoryStanding::Interrupted => match &head.mark {
                Some(mark) => self.write_identity(file, mark),
                None => Ok(()),
            },
            DirectoryStanding::Moved => self.take_over_worktree(file, &head),
            DirectoryStanding::Copy(original) => Err(self.copied_error(&original)),
            DirectoryStanding::TakenOver => Err(self.taken_over_error(&head)),
        }
    }

    /// What is wrong with this directory, for commands that only read: they go on.
    pub fn find_dir_problem(&self) -> Result<Option<VolumeError>> {
        let file = self.state.read_worktree_file()?;
        // Most often it is where it was recorded: then the ref is not asked for.
        if has_own_store(&file) || is_recorded_place(&file, &self.state)? {
            return Ok(None);
        }
        let head = self.read_own_head()?;
        Ok(match self.read_dir_standing(&file, &head)? {
            DirectoryStanding::Copy(original) => Some(self.copied_error(&original)),
            DirectoryStanding::TakenOver => Some(self.taken_over_error(&head)),
            DirectoryStanding::Recorded | DirectoryStanding::Interrupted | DirectoryStanding::Moved => None,
        })
    }

    /// Makes a directory that is a copy of a worktree one of its own, which stands on `head`. Its files stay as they are.
    /// The caller holds the worktree's lock.
    pub fn adopt_dir(&self, name: &str, head: Option<SnapshotId>) -> Result<()> {
        check_ref_name(name)?;
        self.check_new_worktree(name)?;
        if self.find_dir_problem()?.is_none() {
            return Err(VolumeError::NotCopied(self.state.root().into()));
        }
        let mark = WorktreeMark::generate();
        let new = WorktreeHead { head, mark: Some(mark), ..self.new_head() };
        self.refs.update_ref(RefKind::Worktree, name, |old| match old {
            None => Ok(Some(new.encode())),
            // Of an adoption of this very directory that was killed.
            Some(old) => {
                let old = super::decode_worktree_head(old)?;
                match (&old.place, &old.host) == (&new.place, &new.host) && old.lease.is_none() {
                    true => Ok(Some(new.encode())),
                    false => Err(self.taken_name_error(name, &old)),
                }
            }
        })?;
        self.write_identity(WorktreeFile { worktree: name.into(), ..self.state.read_worktree_file()? }, &mark)
    }

    /// Fails unless this directory has the mark of its worktree: somebody may have taken that over a moment ago.
    pub(super) fn check_worktree_mark(&self, name: &str, head: &WorktreeHead) -> Result<()> {
        // Only its own worktree is in this directory, and one of an early version has no mark.
        if name != self.worktree.worktree || head.mark.is_none() {
            return Ok(());
        }
        let own = self.state.read_worktree_file()?.identity.and_then(|identity| identity.mark());
        if own == head.mark { Ok(()) } else { Err(self.taken_over_error(head)) }
    }

    /// What the ref of this worktree says; see [`crate::refs::RefStore::get_recent_ref`].
    pub(super) fn read_own_head(&self) -> Result<WorktreeHead> {
        let name = &self.worktree.worktree;
        let missing = || VolumeError::no_worktree(name.clone());
        let found = self.refs.get_recent_ref(RefKind::Worktree, name)?;
        super::decode_worktree_head(&found.ok_or_else(missing)?)
    }

    fn read_dir_standing(&self, file: &WorktreeFile, head: &WorktreeHead) -> Result<DirectoryStanding> {
        let (path, _) = locate_state_dir(&self.state)?;
        // A worktree of an early version has no mark: the first directory that asks is given one.
        let Some(mark) = &head.mark else { return Ok(DirectoryStanding::Moved) };
        let Some(identity) = file.identity.as_ref().filter(|own| own.mark().as_ref() == Some(mark)) else {
            // The ref has another mark and this very place: this directory took the worktree over, and was killed
            // before it wrote its own file.
            let is_here = head.host == host_name() && Path::new(&head.place) == path;
            return Ok(if is_here { DirectoryStanding::Interrupted } else { DirectoryStanding::TakenOver });
        };
        if is_recorded_place(file, &self.state)? {
            return Ok(DirectoryStanding::Recorded);
        }
        Ok(match find_original(file, identity)? {
            // One directory that is reached in two ways.
            Some(there) if is_same_dir(&there, &self.state) => DirectoryStanding::Recorded,
            Some(there) => DirectoryStanding::Copy(there.root().into()),
            None => DirectoryStanding::Moved,
        })
    }

    /// Gives the worktree a new mark, and this directory with it.
    fn take_over_worktree(&self, file: WorktreeFile, known: &WorktreeHead) -> Result<()> {
        let name = &self.worktree.worktree;
        let mark = WorktreeMark::generate();
        let here = self.new_head();
        self.refs.update_ref(RefKind::Worktree, name, |old| {
            let missing = || VolumeError::no_worktree(name.clone());
            let mut head = super::decode_worktree_head(old.ok_or_else(missing)?)?;
            // Another directory has taken it over since this one looked.
            if head.mark != known.mark {
                return Err(self.taken_over_error(&head));
            }
            head.mark = Some(mark);
            (head.host, head.place) = (here.host.clone(), here.place.clone());
            Ok(Some(head.encode()))
        })?;
        self.write_identity(file, &mark)
    }

    /// Says in the ref where this worktree is, if it says otherwise.
    fn update_recorded_place(&self, head: &WorktreeHead) -> Result<()> {
        let here = self.new_head();
        if (&head.host, &head.place) == (&here.host, &here.place) {
            return Ok(());
        }
        self.update_worktree_ref(&self.worktree.worktree, |head| {
            (head.host, head.place) = (here.host.clone(), here.place.clone());
        })
    }

    fn write_identity(&self, file: WorktreeFile, mark: &WorktreeMark) -> Result<()> {
        let identity = Some(DirectoryIdentity::new_with_mark(&self.state, mark)?);
        self.state.write_worktree_file(&WorktreeFile { identity, ..file })
    }

    fn copied_error(&self, original: &Path) -> VolumeError {
        VolumeError::CopiedWorktree {
            copy: self.state.root().into(),
            worktree: self.worktree.worktree.clone(),
            original: original.into(),
        }
    }

    /// The error of a name that another worktree has. Where that has lost its directory, it says so.
    pub(super) fn taken_name_error(&self, name: &str, head: &WorktreeHead) -> VolumeError {
        let is_gone = head.host == host_name() && !Path::new(&head.place).join(STATE_DIR).exists();
        // A live state has no state directory of its own, and a name that was pushed has no place.
        match is_gone && head.mark.is_some() {
            true => VolumeError::DirectoryGone { name: name.into(), place: head.place.clone().into() },
            false => VolumeError::Exists { kind: "worktree", name: name.into() },
        }
    }

    fn taken_over_error(&self, head: &WorktreeHead) -> VolumeError {
        let place = match head.host == host_name() {
            true => head.place.clone(),
            false => format!("{}:{}", head.host, head.place),
        };
        VolumeError::WorktreeTakenOver {
            directory: self.state.root().into(),
            worktree: self.worktree.worktree.clone(),
            place,
        }
    }
}

/// Whether the directory is where its file says that it is, and the same one.
fn is_recorded_place(file: &WorktreeFile, state: &StateDir) -> Result<bool> {
    let (path, inode) = locate_state_dir(state)?;
    let same = |own: &DirectoryIdentity| own.inode == inode && Path::new(&own.path) == path;
    Ok(file.identity.as_ref().is_some_and(same))
}

/// The directory that was copied, if it is still there.
fn find_original(file: &WorktreeFile, identity: &DirectoryIdentity) -> Result<Option<StateDir>> {
    let state = StateDir::at_root(Path::new(&identity.path))?;
    // A directory that is not there, or is no worktree that can be read, is not taken for the original.
    let Ok(there) = state.read_worktree_file() else { return Ok(None) };
    let Ok((_, inode)) = locate_state_dir(&state) else { return Ok(None) };
    // What is there now may be a copy, too, which was put back from a backup. It is the original only if it has the
    // inode that it has recorded.
    let is_original = there.volume == file.volume
        && there.worktree == file.worktree
        && there.identity.is_some_and(|other| other.mark == identity.mark && other.inode == inode);
    Ok(is_original.then_some(state))
}

fn is_same_dir(one: &StateDir, other: &StateDir) -> bool {
    // Both are asked at this moment, so that the number of the device counts, which is never kept.
    let id = |state: &StateDir| fs::metadata(state.path()).map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}
