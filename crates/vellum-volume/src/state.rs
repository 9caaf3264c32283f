//! The state directory `.vellum` of a worktree: the volume that it belongs to, the master key, what was seen of the
//! store, and the lock that serialises commands. It is in the worktree's directory, or elsewhere (`placement`).
//!
//! Invariant: every file is replaced atomically (temporary file, fsync unless it may be lost, rename) and readable by its owner
//! only.

mod placement;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use vellum_crypto::MasterKey;
use vellum_host::lock::lock_exclusive;
use vellum_host::private_dir::create_private_dir;
pub use vellum_store::set_owner_from_dir;
use vellum_types::{LookupResult, VolumeId};
use zeroize::Zeroizing;

pub use self::placement::find_user_state_dir;
use self::placement::{KnownPlaces, has_marker};

use crate::error::{Result, VolumeError};
use crate::key_epochs::{EPOCHS_FILE, GivenKeys};
use crate::refs::KNOWN_REFS_FILE;
use crate::volume::CONFIG_COPY_FILE;

/// Name of the state directory at the root of a worktree. No snapshot contains anything of this name.
pub const STATE_DIR: &str = ".vellum";

/// What was found out about the store.
pub(crate) const STORE_CHECK_FILE: &str = "store-check.json";
const WORKTREE_FILE: &str = "worktree.json";
const KEY_FILE: &str = "key";
const SEEN_FILE: &str = "seen.json";
const SEEN_LOCK_FILE: &str = "seen.lock";
const LOCK_FILE: &str = "lock";
/// Folder of the local index.
pub(crate) const INDEX_FOLDER: &str = "index";
const GITIGNORE_FILE: &str = ".gitignore";
const CACHE_TAG_FILE: &str = "CACHEDIR.TAG";
/// Disk space reserved for operations that free space, if the store is on another disk.
pub(crate) const RESERVE_FILE: &str = "reserve";
// The Cache Directory Tagging Specification prescribes this signature: backup programs look for it.
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n\
# Copies of a part of the store, which Vellum makes anew when they are missing.\n";
const KEY_PREFIX: &str = "vellum-master-key-1:";
/// Random digits in the name of a temporary file.
const TEMPORARY_DIGITS: usize = 16;
/// Temporary files of processes that died are removed when they are this old: writing one takes milliseconds.
const LEFTOVER_AGE: Duration = Duration::from_secs(10 * 60);
/// Version of the layout of the state directory.
const LAYOUT: u32 = 1;

/// Whether a file that was replaced survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileDurability {
    Synced,
    Unsynced,
}

/// The worktree and the volume to which a directory belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeFile {
    /// Version of the state directory's layout.
    pub layout: u32,
    /// The volume, in hexadecimal.
    pub volume: String,
    /// Where its objects are: a path (relative to the state directory if it lies in it) or a URL.
    pub store: String,
    /// The name of the credentials that open the store, if it needs any. Never the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// Name of the worktree.
    pub worktree: String,
    /// Whether the volume is sealed: a store that says otherwise later is refused.
    pub encrypted: bool,
    /// What tells the directory from copies of it; none if the store lies in the state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<DirectoryIdentity>,
    /// The directory whose state this is, if that is not the one in which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The device whose secret opened the volume here; none if no device's did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// Distinguishes the directory of a worktree from copies of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryIdentity {
    /// The mark of the worktree's ref, in hexadecimal.
    pub mark: String,
    /// The inode of the state directory. (Its device is not kept: numbers of devices change when a machine starts.)
    pub inode: u64,
    /// The directory's path, without symlinks.
    pub path: String,
}

impl WorktreeFile {
    /// Describes a new worktree.
    #[must_use]
    pub fn new(volume: VolumeId, store: String, worktree: String, encrypted: bool) -> Self {
        Self {
            layout: LAYOUT,
            volume: volume.to_string(),
            store,
            credentials: None,
            worktree,
            encrypted,
            identity: None,
            directory: None,
            device: None,
        }
    }
}

/// A worktree's state directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
    /// The directory whose state this is.
    root: PathBuf,
    /// The keys of a process that was given them because they are not kept here.
    given: Option<Arc<GivenKeys>>,
}

impl StateDir {
    /// Returns the state directory of the worktree that `start` lies in. Fails with [`VolumeError::NoVolume`] if it lies in
    /// none, with [`VolumeError::StateElsewhere`] if this user does not know where it is, and with
    /// [`VolumeError::ChangedMarker`] if somebody has put something else in its place.
    pub fn find_enclosing(start: &Path) -> Result<Self> {
        let places = KnownPlaces::read_list()?;
        let known = start.ancestors().find(|dir| places.find_state_path(dir).is_some());
        for dir in start.ancestors() {
            if let Some(state) = places.find_state_path(dir) {
                return Self::open_known_place(dir, state);
            }
            let path = dir.join(STATE_DIR);
            match fs::metadata(path.join(WORKTREE_FILE)) {
                Ok(_) => match known {
                    None => return Ok(Self::at_found_path(path)),
                    // Whoever may work in the directory can make it, with hooks and a key of theirs.
                    Some(root) => {
                        let state = places.find_state_path(root).unwrap_or(root).into();
                        return Err(VolumeError::ChangedMarker { marker: path, state });
                    }
                },
                // It is there, and may not be looked into. (What may not be looked for at all counts as not there.)
                Err(error)
                    if error.kind() == ErrorKind::PermissionDenied && path.symlink_metadata().is_ok() =>
                {
                    return Err(VolumeError::wrap_local_error(&path)(error));
                }
                Err(_) if has_marker(dir) => return Err(VolumeError::StateElsewhere(dir.into())),
                Err(_) => {}
            }
        }
        Err(VolumeError::NoVolume(start.into()))
    }

    /// Returns the state directory that `root` has, or would have.
    pub(crate) fn for_root(root: &Path) -> Self {
        Self::at_path(root.join(STATE_DIR))
    }

    fn at_path(path: PathBuf) -> Self {
        let root = path.parent().unwrap_or(Path::new("/")).into();
        Self { path, root, given: None }
    }

    /// Returns the state directory with keys that are not kept in it. Neither they nor those of later epochs are written.
    #[must_use]
    pub(crate) fn with_given_keys(&self, keys: GivenKeys) -> Self {
        Self { given: Some(Arc::new(keys)), ..self.clone() }
    }

    /// Returns the keys that this process was given.
    pub(crate) fn given_keys(&self) -> Option<&GivenKeys> {
        self.given.as_deref()
    }

    /// Returns a folder of a state directory, as that of a live worktree.
    pub(crate) fn for_folder(folder: &Path) -> Self {
        Self::at_path(folder.into())
    }

    /// Returns a folder of this state directory as a state directory: what is known of another store of the volume.
    pub(crate) fn within(&self, folder: &str) -> Self {
        Self::at_path(self.path.join(folder))
    }

    /// Returns the state directory that `root` would have. Creates nothing. Fails with [`VolumeError::AlreadyInitialised`] if
    /// it is there, and with [`VolumeError::Nested`] if `root` lies in a worktree.
    pub fn for_new_root(root: &Path) -> Result<Self> {
        match Self::find_enclosing(root) {
            Ok(found) if found.root() == root => Err(VolumeError::AlreadyInitialised(root.into())),
            Ok(found) => Err(VolumeError::Nested { inner: root.into(), outer: found.root().into() }),
            Err(
                error @ (VolumeError::StateElsewhere(_)
                | VolumeError::ChangedMarker { .. }
                | VolumeError::DamagedPlaces { .. }),
            ) => Err(error),
            Err(_) => Ok(Self::for_root(root)),
        }
    }

    /// Creates a state directory in `root`. Fails as [`Self::for_new_root`] does.
    pub fn create(root: &Path) -> Result<Self> {
        let state = Self::for_new_root(root)?;
        let path = &state.path;
        let make = || -> std::io::Result<()> {
            // Private from the first moment: the key is written into it.
            create_private_dir(path)?;
            set_owner_from_dir(File::open(root)?, File::open(path)?)
        };
        make().map_err(VolumeError::wrap_local_error(path))?;
        state.hide_from_git()?;
        Ok(state)
    }

    /// Writes a `.gitignore`, which keeps `git add` from taking the key. (Mercurial reads only the one at its root.)
    pub fn hide_from_git(&self) -> Result<()> {
        let path = self.join(GITIGNORE_FILE);
        // One that is there is the user's.
        if path.symlink_metadata().is_ok() { Ok(()) } else { self.write_file(GITIGNORE_FILE, b"*\n") }
    }

    /// Writes a tag that tells backup programs to leave out a folder of the state directory, because it can be made anew
    /// (<https://bford.info/cachedir/>).
    pub fn write_cachedir_tag(&self, folder: &str) -> Result<()> {
        let name = format!("{folder}/{CACHE_TAG_FILE}");
        if !self.join(folder).is_dir() || self.join(&name).symlink_metadata().is_ok() {
            return Ok(());
        }
        self.write_file(&name, CACHE_TAG)
    }

    /// Removes a state directory that holds nothing which is needed to go on: no key, no store, no live state.
    pub fn remove_if_unused(&self) {
        let needed = |entry: fs::DirEntry| match entry.file_name().to_str() {
            Some(
                GITIGNORE_FILE | RESERVE_FILE | INDEX_FOLDER | SEEN_FILE | SEEN_LOCK_FILE | STORE_CHECK_FILE
                | EPOCHS_FILE | CONFIG_COPY_FILE | KNOWN_REFS_FILE,
            ) => false,
            // An empty folder of a store that was never written to.
            _ => fs::remove_dir(entry.path()).is_err(),
        };
        if fs::read_dir(&self.path).is_ok_and(|entries| !entries.flatten().any(needed)) {
            let _ = fs::remove_dir_all(&self.path);
            self.forget_place();
        }
    }

    /// Returns the path of the state directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory whose state this is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a file or folder of the state directory.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads which worktree this is. Fails with [`VolumeError::Decode`] if the layout is of another version.
    pub fn read_worktree_file(&self) -> Result<WorktreeFile> {
        let path = self.join(WORKTREE_FILE);
        let text = fs::read(&path).map_err(VolumeError::wrap_local_error(&path))?;
        let file: WorktreeFile = serde_json::from_slice(&text)
            .map_err(|error| VolumeError::wrap_local_error(&path)(std::io::Error::other(error)))?;
        // A newer version may keep things here that this one would overwrite or overlook.
        if file.layout != LAYOUT {
            let source = vellum_types::DecodeError::Version(file.layout);
            return Err(VolumeError::Decode { what: path.display().to_string(), source });
        }
        Ok(file)
    }

    /// Writes which worktree this is. From then on, commands find it.
    pub fn write_worktree_file(&self, file: &WorktreeFile) -> Result<()> {
        let directory = self.is_elsewhere().then(|| self.root.display().to_string());
        self.write_json_file(WORKTREE_FILE, &WorktreeFile { directory, ..file.clone() })
    }

    /// Returns the master key that this process was given, or that is kept here, if any. Fails if the file holds something
    /// else.
    pub fn read_master_key(&self) -> Result<Option<MasterKey>> {
        if let Some(given) = &self.given {
            return Ok(Some(MasterKey::from_bytes(*given.master.as_bytes())));
        }
        let path = self.join(KEY_FILE);
        let text = fs::read_to_string(&path).map(Zeroizing::new).none_if_missing();
        let Some(text) = text.map_err(VolumeError::wrap_local_error(&path))? else { return Ok(None) };
        let malformed =
            || VolumeError::wrap_local_error(&path)(std::io::Error::other("it does not hold a master key"));
        let hex = text.trim_end().strip_prefix(KEY_PREFIX).ok_or_else(malformed)?;
        // Parsed as an id, which has as many hexadecimal digits. The message must not repeat what the file holds.
        let bytes: vellum_types::BlobId = hex.parse().map_err(|_| malformed())?;
        Ok(Some(MasterKey::from_bytes(bytes.0)))
    }

    /// Writes the master key into a file that only the owner can read.
    pub fn write_master_key(&self, key: &MasterKey) -> Result<()> {
        // Reserved whole: a string that grows leaves copies of the key in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(KEY_PREFIX.len() + 65));
        text.push_str(KEY_PREFIX);
        // Digit by digit into the reserved string: what `format!` makes would not be wiped.
        for byte in key.as_bytes() {
            text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        }
        text.push('\n');
        self.write_file(KEY_FILE, text.as_bytes())
    }

    /// Returns the path of the file with the counters of refs that were seen.
    #[must_use]
    pub fn seen_file_path(&self) -> PathBuf {
        self.join(SEEN_FILE)
    }

    /// Reads the counters of refs that were seen, by object. Fails with [`VolumeError::SeenUnreadable`] if the file is
    /// damaged: without it, a store that was rolled back would not be noticed.
    pub fn read_seen_counters(&self) -> Result<BTreeMap<String, u64>> {
        let Some(text) = self.read_file(SEEN_FILE)? else { return Ok(BTreeMap::new()) };
        serde_json::from_slice(&text).map_err(|error| VolumeError::SeenUnreadable {
            note: self.seen_file_path(),
            reason: error.to_string(),
        })
    }

    /// Writes the counters of refs that were seen.
    pub fn write_seen_counters(&self, seen: &BTreeMap<String, u64>) -> Result<()> {
        self.write_json_file(SEEN_FILE, seen)
    }

    /// Writes counters of refs together with those that other commands of this worktree wrote meanwhile, and adds these to
    /// `seen`. Waits for commands that do the same.
    pub fn merge_seen_counters(&self, seen: &mut BTreeMap<String, u64>) -> Result<()> {
        // A lock of its own: commands that only read refs raise counters, too, and must not wait for one that changes
        // the worktree.
        let lock = self.open_lock_file(SEEN_LOCK_FILE)?;
        lock_exclusive(&lock, || self.join(SEEN_LOCK_FILE).display().to_string())
            .map_err(VolumeError::wrap_local_error(self.join(SEEN_LOCK_FILE)))?;
        for (object, counter) in self.read_seen_counters()? {
            // Never downwards: a counter that is lower than one seen before is how a rolled back ref is recognised.
            let known = seen.entry(object).or_default();
            *known = counter.max(*known);
        }
        self.write_seen_counters(seen)
    }

    /// Reads a file of the state directory; None if it is not there.
    pub fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.join(name);
        fs::read(&path).none_if_missing().map_err(VolumeError::wrap_local_error(&path))
    }

    /// Removes a file of the state directory durably. A file that is not there counts as removed.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        let path = self.join(name);
        fs::remove_file(&path)
            .ignore_missing()
            // Also if it was gone before: whoever removed it may not have made that durable.
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(VolumeError::wrap_local_error(&path))
    }

    /// Removes the whole state directory, of a worktree that could not be created.
    pub fn remove_dir(self) -> Result<()> {
        fs::remove_dir_all(&self.path).map_err(VolumeError::wrap_local_error(&self.path))?;
        self.forget_place();
        Ok(())
    }

    /// Replaces a JSON file of the state directory, as [`Self::write_file`] does.
    pub fn write_json_file(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.write_file(name, &self.encode_json(name, value)?)
    }

    /// Replaces a JSON file of the state directory atomically, but not durably: after a power cut it may be empty, or not
    /// there.
    pub fn write_json_file_unsynced(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.replace_file(name, &self.encode_json(name, value)?, FileDurability::Unsynced)
    }

    fn encode_json(&self, name: &str, value: &impl Serialize) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(value)
            .map_err(|error| VolumeError::wrap_local_error(self.join(name))(std::io::Error::other(error)))
    }

    /// Replaces a file of the state directory atomically and durably: after a power cut it has the old or the new content.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.replace_file(name, bytes, FileDurability::Synced)
    }

    fn replace_file(&self, name: &str, bytes: &[u8], durability: FileDurability) -> Result<()> {
        let path = self.join(name);
        // Threads and processes write at the same time, also processes of several containers with equal numbers.
        let random = getrandom::u64().map_err(|error| VolumeError::wrap_local_error(&path)(error.into()))?;
        let temporary = self.join(&format!("{name}.{random:016x}.tmp"));
        let write = || -> std::io::Result<()> {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
            // Of the folder that it goes to: `sudo` must not shut its owner out.
            set_owner_from_dir(File::open(temporary.parent().unwrap_or(&self.path))?, &file)?;
            file.write_all(bytes)?;
            match durability {
                FileDurability::Unsynced => fs::rename(&temporary, &path),
                FileDurability::Synced => {
                    // Before the new name: otherwise a power cut may leave the name with an empty file.
                    file.sync_all()?;
                    fs::rename(&temporary, &path)?;
                    File::open(&self.path)?.sync_all()
                }
            }
        };
        write().map_err(|error| {
            // One that stays is removed later, as other files that are old and have such a name.
            let _ = fs::remove_file(&temporary);
            VolumeError::wrap_local_error(&path)(error)
        })
    }

    /// Locks the worktree; waits until no other command changes it, and calls `waiting` once before it waits.
    pub fn lock_worktree(&self, waiting: impl FnOnce()) -> Result<WorktreeLock> {
        let object = format!("the worktree {}", self.root().display());
        self.lock_named_file(LOCK_FILE, &object, waiting)
    }

    /// Takes the lock of a file; `object` names what it protects. Calls `waiting` once before it waits.
    pub(crate) fn lock_named_file(
        &self,
        name: &str,
        object: &str,
        waiting: impl FnOnce(),
    ) -> Result<WorktreeLock> {
        if let Some(lock) = self.try_lock_named_file(name)? {
            return Ok(lock);
        }
        waiting();
        let file = self.open_lock_file(name)?;
        lock_exclusive(&file, || object.into()).map_err(VolumeError::wrap_local_error(self.join(name)))?;
        self.remove_stale_temp_files();
        Ok(WorktreeLock { _file: file })
    }

    /// Locks the worktree; None if another command has the lock.
    pub fn try_lock_worktree(&self) -> Result<Option<WorktreeLock>> {
        self.try_lock_named_file(LOCK_FILE)
    }

    /// Takes the lock of a file; None if another command has it.
    pub(crate) fn try_lock_named_file(&self, name: &str) -> Result<Option<WorktreeLock>> {
        let file = self.open_lock_file(name)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.remove_stale_temp_files();
                Ok(Some(WorktreeLock { _file: file }))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(VolumeError::wrap_local_error(self.join(name))(error.into())),
        }
    }

    /// Removes temporary files of processes that were killed while they replaced a file. What cannot be removed waits for
    /// the next time.
    pub(crate) fn remove_stale_temp_files(&self) {
        for path in self.list_temp_files(LEFTOVER_AGE) {
            let _ = fs::remove_file(path);
        }
    }

    /// The temporary files that are older than `age_min`: a young one may belong to a process that is about to rename it.
    pub(crate) fn list_temp_files(&self, age_min: Duration) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_old = |entry: &fs::DirEntry| {
            let modified = entry.metadata().and_then(|meta| meta.modified()).ok();
            // A file from the future counts as young: a clock was set back.
            modified.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > age_min)
        };
        let temporary = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_temp_file_name));
        temporary.filter(is_old).map(|entry| entry.path()).collect()
    }

    /// Returns the path of the file whose lock is held while a command changes the worktree.
    #[must_use]
    pub fn lock_file_path(&self) -> PathBuf {
        self.join(LOCK_FILE)
    }

    /// Holds a file's lock together with others that do, and notes the time in it. Waits only for those who look whether it
    /// is held.
    pub(crate) fn share_named_lock(&self, name: &str) -> Result<WorktreeLock> {
        let file = self.open_lock_file(name)?;
        // The time of the file says when the transfer began, to those who ask for how long it has been under way.
        flock(&file, FlockOperation::LockShared)
            .map_err(std::io::Error::from)
            .and_then(|()| file.set_modified(SystemTime::now()))
            .map_err(VolumeError::wrap_local_error(self.join(name)))?;
        Ok(WorktreeLock { _file: file })
    }

    fn open_lock_file(&self, name: &str) -> Result<File> {
        let path = self.join(name);
        let open = || -> std::io::Result<File> {
            // The file stays for good. If it were removed, a process that waits for its lock would get that of a file
            // without a name, while another locks the new one.
            let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            set_owner_from_dir(File::open(&self.path)?, &file)?;
            Ok(file)
        };
        open().map_err(VolumeError::wrap_local_error(&path))
    }
}

/// Whether a file of the state directory is one that was being written.
fn is_temp_file_name(name: &str) -> bool {
    let random = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.'));
    random.is_some_and(|(_, random)| {
        random.len() == TEMPORARY_DIGITS && random.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Held while a command changes a worktree; released when dropped, or when the process dies.
#[derive(Debug)]
pub struct WorktreeLock {
    _file: File,
}
