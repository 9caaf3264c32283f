//! State directories that are not in the directory of their worktree, and what leads to them.
//!
//! The directory of such a worktree has a marker in the place of the state directory. Whoever works there can change it, so it
//! only says that there is something to look for; where that is, a list in the home of the user says. The state directory
//! itself knows the directory whose state it has.
//!
//! Invariant: no key, setting or hook is read because of what lies in the directory of the worktree.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use vellum_host::lock::lock_exclusive;
use vellum_host::private_dir::create_private_dir;

use super::{STATE_DIR, StateDir, WORKTREE_FILE};
use crate::error::{Result, VolumeError};

/// What a marker begins with.
const MARKER: &str = "vellum: the state of this worktree is in ";
/// Longest marker that is read, bytes: the longest path, and what stands around it.
const MARKER_MAX: u64 = 8192;
/// Version of the list.
const VERSION: u32 = 1;
const LIST_FILE: &str = "worktrees.json";
const LIST_LOCK: &str = "worktrees.lock";

/// The directory for what Vellum remembers for a user; none if the environment names no place.
#[must_use]
pub fn find_user_state_dir() -> Option<PathBuf> {
    // The XDG specification treats an empty variable as unset.
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("vellum"))
}

/// State directories by the directory whose state they are.
type StatePaths = BTreeMap<String, String>;

/// The list of a user, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredPlaces {
    version: u32,
    directories: StatePaths,
}

/// The directories of this user whose state is elsewhere.
pub(super) struct KnownPlaces {
    directories: StatePaths,
}

impl KnownPlaces {
    /// Reads the list. One that belongs to another user, as after `sudo`, counts as empty: nobody else says where this user's
    /// hooks and keys are.
    pub(super) fn read_list() -> Result<Self> {
        let directories = match find_user_state_dir() {
            Some(dir) => read_state_paths(&dir.join(LIST_FILE))?,
            None => StatePaths::new(),
        };
        Ok(Self { directories })
    }

    /// The state directory of a directory.
    pub(super) fn find_state_path(&self, directory: &Path) -> Option<&Path> {
        directory.to_str().and_then(|directory| self.directories.get(directory)).map(Path::new)
    }
}

fn read_state_paths(path: &Path) -> Result<StatePaths> {
    let failed = || VolumeError::wrap_local_error(path);
    let owner = match fs::metadata(path) {
        Ok(found) => found.uid(),
        // What is not there, or may not be looked at, is no list of this user.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(StatePaths::new());
        }
        Err(error) => return Err(failed()(error)),
    };
    // With `sudo`, HOME may be that of the user who called it. What that user writes must not lead root to hooks.
    if owner != geteuid().as_raw() {
        return Ok(StatePaths::new());
    }
    let text = fs::read(path).map_err(failed())?;
    let list: StoredPlaces = serde_json::from_slice(&text)
        .map_err(|error| VolumeError::DamagedPlaces { list: path.into(), reason: error.to_string() })?;
    if list.version != VERSION {
        let source = vellum_types::DecodeError::Version(list.version);
        return Err(VolumeError::Decode { what: path.display().to_string(), source });
    }
    Ok(list.directories)
}

/// Changes the list of this user. Waits for other commands that do.
fn change_list(change: impl FnOnce(&mut StatePaths)) -> Result<()> {
    let dir = find_user_state_dir().ok_or(VolumeError::NoUserState)?;
    let path = dir.join(LIST_FILE);
    let failed = || VolumeError::wrap_local_error(&path);
    let lock = || -> std::io::Result<File> {
        create_private_dir(&dir)?;
        let lock = dir.join(LIST_LOCK);
        let file = File::options().create(true).write(true).truncate(false).mode(0o600).open(&lock)?;
        lock_exclusive(&file, || lock.display().to_string())?;
        Ok(file)
    };
    let _lock = lock().map_err(failed())?;
    // Read under the lock, so that what another command has just added is not lost.
    let mut directories = read_state_paths(&path)?;
    change(&mut directories);
    let text = serde_json::to_vec_pretty(&StoredPlaces { version: VERSION, directories })
        .map_err(|error| failed()(std::io::Error::other(error)))?;
    replace_file(&path, &text, 0o600).map_err(failed())
}

/// Replaces a file, or a symlink in its place, atomically.
fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let random = getrandom::u64()?;
    let temporary = folder.join(format!("{name}.{random:016x}.tmp"));
    let write = || {
        // A new file with a random name: nobody else can have put a symlink there, through which this would write.
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// What the marker of a worktree says.
fn format_marker(state: &Path) -> String {
    format!("{MARKER}{}\n", state.display())
}

/// Whether there is a marker, whatever it says.
pub(super) fn has_marker(root: &Path) -> bool {
    read_marker(root).is_some_and(|text| text.starts_with(MARKER.as_bytes()))
}

/// The content of a plain file in the place of the state directory. Symlinks are not followed.
fn read_marker(root: &Path) -> Option<Vec<u8>> {
    let path = root.join(STATE_DIR);
    // Whoever works in the directory can put anything here, also a pipe that would be waited for.
    let found = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
    if found.len() > MARKER_MAX { None } else { fs::read(path).ok() }
}

impl StateDir {
    /// Returns whether this is not in the directory whose state it is.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.path.parent() != Some(self.root.as_path())
    }

    /// Returns the state directory of `root` in `holder`, as it would be. Creates nothing. Fails as [`Self::for_new_root`]
    /// does, and with [`VolumeError::BadHolder`] if one of the two directories lies in the other.
    pub fn for_new_holder(root: &Path, holder: &Path) -> Result<Self> {
        Self::check_new_root(root)?;
        let bad = |reason| VolumeError::BadHolder { holder: holder.into(), reason };
        if holder.starts_with(root) {
            return Err(bad("it lies in the directory of the worktree, in which others are to work"));
        }
        if root.starts_with(holder.join(STATE_DIR)) {
            return Err(bad("the directory of the worktree would lie in the state"));
        }
        if root.to_str().is_none() || holder.to_str().is_none() {
            return Err(bad("a path is not UTF-8, and could not be remembered"));
        }
        match Self::find_enclosing(holder) {
            Ok(outer) => Err(VolumeError::Nested { inner: holder.into(), outer: outer.root().into() }),
            Err(error @ VolumeError::DamagedPlaces { .. }) => Err(error),
            Err(_) => Ok(Self { path: holder.join(STATE_DIR), root: root.into(), given: None }),
        }
    }

    /// Fails if a directory is a worktree, or lies in one. What leads to a state that is not there is of a command that was
    /// killed before the worktree was made, or of somebody who gave it up.
    fn check_new_root(root: &Path) -> Result<()> {
        match Self::for_new_root(root) {
            Ok(_) | Err(VolumeError::StateElsewhere(_) | VolumeError::Local { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates a state directory for `root` in `holder`, and what leads to it. Fails as [`Self::for_new_holder`] does.
    pub fn create_in_holder(root: &Path, holder: &Path) -> Result<Self> {
        let state = Self::for_new_holder(root, holder)?;
        let make = || create_private_dir(&state.path);
        make().map_err(VolumeError::wrap_local_error(&state.path))?;
        state.lead_to_state()?;
        state.hide_from_git()?;
        Ok(state)
    }

    /// Writes the marker, and remembers for this user where the state is.
    fn lead_to_state(&self) -> Result<()> {
        let root = self.root.display().to_string();
        let path = self.path.display().to_string();
        // The list before the marker: a marker without an entry would be reported as that of a state that is not there.
        change_list(|directories| drop(directories.insert(root, path)))?;
        self.write_marker()
    }

    /// Leads to the state again, if it is not in the worktree's directory: writes the marker there, and remembers for this
    /// user where the state is, unless the list names another place, or the state is another user's.
    pub fn renew_marker(&self) -> Result<()> {
        if !self.is_elsewhere() {
            return Ok(());
        }
        let owner = fs::metadata(&self.path).map_err(VolumeError::wrap_local_error(&self.path))?.uid();
        if owner == geteuid().as_raw() && KnownPlaces::read_list()?.find_state_path(&self.root).is_none() {
            let root = self.root.display().to_string();
            let path = self.path.display().to_string();
            change_list(|directories| {
                // The list was read without the lock: a place that another command has entered since then stays.
                directories.entry(root).or_insert(path);
            })?;
        }
        self.write_marker()
    }

    fn write_marker(&self) -> Result<()> {
        let path = self.root.join(STATE_DIR);
        replace_file(&path, format_marker(&self.path).as_bytes(), 0o644)
            .map_err(VolumeError::wrap_local_error(&path))
    }

    /// Makes this the state of another directory, into which the files of the worktree were moved. Fails if that is a
    /// worktree, or lies in one.
    pub fn move_root(&self, root: &Path) -> Result<Self> {
        Self::check_new_root(root)?;
        let moved = Self { root: root.into(), ..self.clone() };
        let old = self.root.display().to_string();
        // The state first: as long as the list has only the old directory, opening it says that the state is another's.
        moved.write_worktree_file(&self.read_worktree_file()?)?;
        change_list(|directories| drop(directories.remove(&old)))?;
        moved.lead_to_state()?;
        Ok(moved)
    }

    /// Forgets where the state of the directory was, after it was removed.
    pub(super) fn forget_place(&self) {
        if !self.is_elsewhere() {
            return;
        }
        let root = self.root.display().to_string();
        // An entry that is left leads to nothing, and is replaced by the next worktree of this directory.
        let _ = change_list(|directories| drop(directories.remove(&root)));
        // One that says something else belongs to another state, or to a file of the user.
        if read_marker(&self.root).is_some_and(|text| text == format_marker(&self.path).as_bytes()) {
            let _ = fs::remove_file(self.root.join(STATE_DIR));
        }
    }

    /// The state directory of `root` that the list names. Fails if the marker is not as it was written, or if the state is
    /// that of another directory.
    pub(super) fn open_known_place(root: &Path, path: &Path) -> Result<Self> {
        // First: without the state there is nothing to guard.
        let file = path.join(WORKTREE_FILE);
        fs::metadata(&file).map_err(VolumeError::wrap_local_error(&file))?;
        let state = Self::at_found_path(path.into());
        if state.root != root {
            let reason = "it is the state of another directory";
            return Err(VolumeError::wrap_local_error(path)(std::io::Error::other(reason)));
        }
        match read_marker(root) {
            Some(marker) if marker == format_marker(path).as_bytes() => Ok(state),
            Some(_) | None => {
                Err(VolumeError::ChangedMarker { marker: root.join(STATE_DIR), state: path.into() })
            }
        }
    }

    /// A state directory that was found, with the directory that it says to be the state of.
    pub(super) fn at_found_path(path: PathBuf) -> Self {
        /// The part of [`super::WorktreeFile`] that says it, of any layout.
        #[derive(Deserialize)]
        struct StateOwner {
            #[serde(default)]
            directory: Option<PathBuf>,
        }
        // A file that cannot be read is reported when all of it is needed.
        let text = fs::read(path.join(WORKTREE_FILE)).unwrap_or_default();
        match serde_json::from_slice::<StateOwner>(&text).ok().and_then(|owner| owner.directory) {
            Some(root) => Self { path, root, given: None },
            None => Self::at_path(path),
        }
    }

    /// The state directory of a directory that is known to be that of a worktree, wherever it is.
    pub(crate) fn at_root(root: &Path) -> Result<Self> {
        let known = KnownPlaces::read_list()?;
        Ok(match known.find_state_path(root) {
            Some(path) => Self::at_found_path(path.into()),
            None => Self::for_root(root),
        })
    }
}
