//! Remotes: other stores of the same volume, by name.
//!
//! Invariant: a remote holds this volume, sealed with the same key, or nothing yet; whatever else is there is refused
//! and left alone. Each remote has a state directory of its own within that of the worktree, so that what was seen of
//! one store is never held against another.

mod published;
mod pull;
mod push;
mod standing;
mod tracking;
mod under_way;

use std::fs;

use vellum_host::private_dir::create_private_dir;
use vellum_store::{ObjectStore, RequestLimits, StoreLocation, set_owner_from_dir};
use vellum_types::{ErrorKind, LookupResult};

pub use self::published::{copy_keys_to_dir, publish_listing};
pub use self::pull::{PullReport, PullRequest, PulledRef, pull_content, pull_snapshots};
pub use self::push::{PushReport, PushRequest, PushedRef, RefPushOutcome, push_snapshots, push_to_volume};
pub use self::standing::{RemoteStanding, compare_with_remote, estimate_standing};
pub use self::tracking::RemoteRefs;
pub use self::under_way::TransferDirection;
use crate::error::{Result, VolumeError};
use crate::key_epochs::{KeyEpochs, KeyHome};
use crate::keyring;
use crate::refs::check_ref_name;
use crate::state::{StateDir, WorktreeFile};
use crate::store_check::{join_store, open_known_store, refuse_wrong_clock, require_fit_store, set_up_store};
use crate::store_identity::StoreIdentity;
use crate::volume::{Volume, config_object_key, read_volume_config};

/// Folder of the state directory that has one folder for each remote.
const REMOTES_FOLDER: &str = "remotes";
/// The remote that is meant where none is named.
pub const DEFAULT_REMOTE: &str = "origin";
/// The worktree of another store that a clone takes its files from, unless another snapshot is named.
pub const MAIN_WORKTREE: &str = "main";

/// Another store of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// What it is called here.
    pub name: String,
    /// Where it is, and the name of what opens it.
    pub location: StoreLocation,
}

/// What the store of a remote holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteContent {
    /// Nothing yet: the first push sets it up.
    Nothing,
    /// This volume.
    Volume,
}

impl Volume {
    /// All remotes, by name.
    pub fn list_remotes(&self) -> Result<Vec<Remote>> {
        let folder = self.state.join(REMOTES_FOLDER);
        let Some(entries) =
            fs::read_dir(&folder).none_if_missing().map_err(VolumeError::wrap_local_error(&folder))?
        else {
            return Ok(Vec::new());
        };
        let mut remotes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(VolumeError::wrap_local_error(&folder))?;
            // Folders of another name are those of remotes that are being added or removed.
            if let Some(name) = entry.file_name().to_str().filter(|name| check_ref_name(name).is_ok())
                && !name.ends_with(UNFINISHED_SUFFIX)
            {
                remotes.push(self.read_remote(name)?);
            }
        }
        // The order of a directory's entries is the filesystem's own.
        remotes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(remotes)
    }

    /// The remote of this name; without one, `origin`, or the only one that there is.
    pub fn find_remote(&self, name: Option<&str>) -> Result<Remote> {
        if let Some(name) = name {
            check_ref_name(name)?;
            return self.read_remote(name);
        }
        let mut remotes = self.list_remotes()?;
        // Also if there are others: adding a second remote must not change where `push` goes.
        if let Some(position) = remotes.iter().position(|remote| remote.name == DEFAULT_REMOTE) {
            return Ok(remotes.swap_remove(position));
        }
        match remotes.len() {
            0 => Err(VolumeError::NoRemotes),
            1 => Ok(remotes.swap_remove(0)),
            _ => Err(VolumeError::SeveralRemotes(remotes.into_iter().map(|remote| remote.name).collect())),
        }
    }

    fn read_remote(&self, name: &str) -> Result<Remote> {
        let state = self.remote_state(name);
        if !state.path().is_dir() {
            return Err(VolumeError::NoSuchRef { kind: "remote", name: name.into() });
        }
        let WorktreeFile { store, credentials, .. } = state.read_worktree_file()?;
        Ok(Remote { name: name.into(), location: StoreLocation { url: store, credentials } })
    }

    fn remote_state(&self, name: &str) -> StateDir {
        self.state.within(&format!("{REMOTES_FOLDER}/{name}"))
    }

    /// Remembers another store under a name. It must hold this volume, or nothing. Nothing is written there.
    pub fn add_remote(&self, name: &str, location: &StoreLocation) -> Result<RemoteContent> {
        check_ref_name(name)?;
        if name.ends_with(UNFINISHED_SUFFIX) {
            return Err(VolumeError::BadName { name: name.into(), reason: "it ends in '.new'" });
        }
        if self.remote_state(name).path().exists() {
            return Err(VolumeError::Exists { kind: "remote", name: name.into() });
        }
        // What is seen of the store while it is tried is kept beside, until it is known to be the right one.
        let unfinished = self.remote_state(&format!("{name}{UNFINISHED_SUFFIX}"));
        let added = self.prepare_remote(&unfinished, location).and_then(|content| {
            rename_dir(&unfinished, &self.remote_state(name))?;
            Ok(content)
        });
        if added.is_err() {
            // The error that is returned says what went wrong, and a folder of this name is no remote.
            let _ = fs::remove_dir_all(unfinished.path());
        }
        added
    }

    fn prepare_remote(&self, state: &StateDir, location: &StoreLocation) -> Result<RemoteContent> {
        // What a killed attempt left was seen of a store that may be another one.
        let _ = fs::remove_dir_all(state.path());
        create_remote_dir(&self.state, state)?;
        let file = WorktreeFile {
            store: location.url.clone(),
            credentials: location.credentials.clone(),
            identity: None,
            ..self.worktree.clone()
        };
        state.write_worktree_file(&file)?;
        match self.open_remote_in(state)? {
            Some(volume) => {
                refuse_wrong_clock(&*volume.objects)?;
                Ok(RemoteContent::Volume)
            }
            None => {
                // A directory that does not exist is made by the first push, and is tried then.
                if let Some(objects) = open_existing_store(location)? {
                    // Now and not at the first push, which may come weeks later and with nobody who remembers the
                    // address.
                    require_fit_store(state, &*objects)?;
                    refuse_wrong_clock(&*objects)?;
                }
                Ok(RemoteContent::Nothing)
            }
        }
    }

    /// Gives a remote another name.
    pub fn rename_remote(&self, old: &str, new: &str) -> Result<()> {
        check_ref_name(new)?;
        self.find_remote(Some(old))?;
        if self.remote_state(new).path().exists() {
            return Err(VolumeError::Exists { kind: "remote", name: new.into() });
        }
        rename_dir(&self.remote_state(old), &self.remote_state(new))
    }

    /// Remembers another address of a remote, at which the volume is.
    pub(crate) fn relocate_remote(&self, remote: &Remote, location: &StoreLocation) -> Result<()> {
        let state = self.remote_state(&remote.name);
        let StoreLocation { url, credentials } = location.clone();
        state.write_worktree_file(&WorktreeFile { store: url, credentials, ..state.read_worktree_file()? })
    }

    /// Forgets a remote. Nothing in its store is changed.
    pub fn remove_remote(&self, name: &str) -> Result<Remote> {
        let remote = self.find_remote(Some(name))?;
        // Under a name that no command reads: a removal that is interrupted leaves no half of a remote.
        let removed = self.remote_state(&format!("{name}{UNFINISHED_SUFFIX}"));
        // A killed attempt may have left one. If it cannot be removed, the rename fails and says so.
        let _ = fs::remove_dir_all(removed.path());
        rename_dir(&self.remote_state(name), &removed)?;
        fs::remove_dir_all(removed.path()).map_err(VolumeError::wrap_local_error(removed.path()))?;
        Ok(remote)
    }

    /// The remotes of this worktree, for another worktree of the same volume.
    pub(crate) fn copy_remotes_to(&self, state: &StateDir) -> Result<()> {
        let folder = state.join(REMOTES_FOLDER);
        // A killed attempt may have left a part of a remote, or one that is not there any more.
        fs::remove_dir_all(&folder).ignore_missing().map_err(VolumeError::wrap_local_error(&folder))?;
        for remote in self.list_remotes()? {
            let path = format!("{REMOTES_FOLDER}/{}", remote.name);
            let copy = state.within(&path);
            create_remote_dir(state, &copy)?;
            let kept = self.state.within(&path);
            // With what was seen there: a store that was rolled back is noticed by the new worktree, too.
            copy.write_seen_counters(&kept.read_seen_counters()?)?;
            copy.write_remote_refs(&kept.read_remote_refs()?)?;
            copy.write_worktree_file(&kept.read_worktree_file()?)?;
        }
        Ok(())
    }

    /// The volume as it is in a remote's store; none if the store holds nothing yet.
    pub fn open_remote(&self, remote: &Remote) -> Result<Option<Self>> {
        self.open_remote_in(&self.remote_state(&remote.name))
    }

    /// Calls `work` with this volume as it is in another store, of which nothing is remembered. Fails with
    /// [`VolumeError::OtherVolume`] or [`VolumeError::OccupiedStore`] if the store holds something else.
    pub fn with_other_store<T>(
        &self,
        location: &StoreLocation,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<Option<T>> {
        // Under a name that no remote has.
        let state = self.remote_state(&format!("other{UNFINISHED_SUFFIX}"));
        // What a killed command left was seen of a store that may be another one.
        let _ = fs::remove_dir_all(state.path());
        create_remote_dir(&self.state, &state)?;
        state.write_worktree_file(&WorktreeFile {
            store: location.url.clone(),
            credentials: location.credentials.clone(),
            identity: None,
            ..self.worktree.clone()
        })?;
        let done = self.open_remote_in(&state).and_then(|other| other.as_ref().map(work).transpose());
        // The next command that needs the folder removes what cannot be removed now.
        let _ = fs::remove_dir_all(state.path());
        done
    }

    fn open_remote_in(&self, state: &StateDir) -> Result<Option<Self>> {
        let worktree = state.read_worktree_file()?;
        let location =
            StoreLocation { url: worktree.store.clone(), credentials: worktree.credentials.clone() };
        let Some(objects) = open_existing_store(&location)? else { return Ok(None) };
        // Before its keys are read: what another volume says must not get into this folder.
        if !self.check_remote_config(&*objects)? {
            return Ok(None);
        }
        let epochs = self.open_remote_keys(state, objects.clone())?;
        let objects = open_known_store(state, objects, epochs.volume_keys())?;
        let mut volume = Self::assemble_volume(state, objects, epochs, self.config, worktree)?;
        volume.attach_source(&RequestLimits::default())?;
        Ok(Some(volume))
    }

    /// The volume in a remote's store, which is set up if it holds nothing.
    pub fn open_or_create_remote(&self, remote: &Remote) -> Result<Self> {
        if let Some(volume) = self.open_remote(remote)? {
            return Ok(volume);
        }
        let state = self.remote_state(&remote.name);
        let objects = vellum_store::create_store(&remote.location)?;
        let mode = require_fit_store(&state, &*objects)?;
        // What was here before may have had key epochs. A store begins with the first.
        state.remove_epoch_masters()?;
        let epochs = self.open_remote_keys(&state, objects.clone())?;
        let keys = epochs.volume_keys();
        let objects = match objects.put_object(&config_object_key()?, &self.config.encode(keys)) {
            Ok(()) => {
                let origin = StoreIdentity::read_from(&*self.objects, &self.keys)?.map(|origin| origin.id);
                let identity = StoreIdentity::new_random(mode, origin);
                set_up_store(&state, objects, keys, identity)?
            }
            // Somebody else was faster: with this volume, or with another.
            Err(vellum_store::StoreError::Exists { .. }) => {
                self.check_remote_config(&*objects)?;
                join_store(&state, objects, keys)?
            }
            Err(error) => return Err(error.into()),
        };
        let worktree = state.read_worktree_file()?;
        let volume = Self::assemble_volume(&state, objects, epochs, self.config, worktree)?;
        // From elsewhere, only a slot opens the volume, and the new store has none.
        keyring::copy_key_slots(self, &volume)?;
        Ok(volume)
    }

    /// Whether a store holds this volume; false if it holds nothing.
    pub(crate) fn check_remote_config(&self, objects: &dyn ObjectStore) -> Result<bool> {
        let foreign = |reason: &str| VolumeError::OtherVolume {
            place: objects.describe_location(),
            reason: reason.into(),
        };
        let Some(stored) = read_volume_config(objects)? else {
            return match objects.holds_objects()? {
                // Files of somebody else are there: a push would mix a volume into them.
                true => Err(VolumeError::OccupiedStore(objects.describe_location())),
                false => Ok(false),
            };
        };
        if stored.config.volume != self.config.volume {
            return Err(foreign("it holds another volume"));
        }
        if stored.config.encrypted != self.config.encrypted {
            return Err(foreign("one of the two is encrypted, and the other is not"));
        }
        // What was compared above is in the clear and can be forged. Only the seal shows that this is the volume.
        stored.authenticate(&self.keys)?;
        Ok(true)
    }

    /// The keys of a remote: the first is that of the volume, the later ones are the remote's own.
    fn open_remote_keys(
        &self,
        state: &StateDir,
        objects: std::sync::Arc<dyn ObjectStore>,
    ) -> Result<std::sync::Arc<KeyEpochs>> {
        let volume = self.config.volume;
        let epochs = match self.state.read_master_key()? {
            Some(master) => {
                let home = KeyHome { worktree: self.state.clone(), store: state.clone() };
                KeyEpochs::for_encrypted(objects, volume, &master, home, None)?
            }
            None if self.config.encrypted => return Err(VolumeError::Locked),
            None => KeyEpochs::for_plain(objects, volume, state.clone()),
        };
        Ok(std::sync::Arc::new(epochs))
    }
}

/// How the folder of a remote ends that is being added or removed.
const UNFINISHED_SUFFIX: &str = ".new";

/// Creates the folder of a remote in the state directory of a worktree, and gives it to the owner of that: a command
/// that runs as root must leave folders that the owner of the worktree can use.
pub(crate) fn create_remote_dir(worktree: &StateDir, remote: &StateDir) -> Result<()> {
    let make = || -> std::io::Result<()> {
        create_private_dir(remote.path())?;
        // The folder of all remotes may have been made, too.
        for made in [remote.root(), remote.path()] {
            set_owner_from_dir(fs::File::open(worktree.path())?, fs::File::open(made)?)?;
        }
        Ok(())
    };
    make().map_err(VolumeError::wrap_local_error(remote.path()))
}

fn rename_dir(from: &StateDir, to: &StateDir) -> Result<()> {
    let rename = || {
        fs::rename(from.path(), to.path())?;
        // A remote that was removed must not be back after a power cut, nor one that was added be gone.
        fs::File::open(to.root())?.sync_all()
    };
    rename().map_err(VolumeError::wrap_local_error(to.path()))
}

/// The store at a place; none if the directory does not exist.
fn open_existing_store(location: &StoreLocation) -> Result<Option<std::sync::Arc<dyn ObjectStore>>> {
    match vellum_store::open_store(location) {
        Ok(objects) => Ok(Some(objects)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
