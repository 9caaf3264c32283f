//! The source of a volume's store: a published store, from which content is read that was not copied.
//!
//! Invariant: the object `store` names the source before any record is stored whose content is there alone, and until all
//! content is here. Only a store in a directory of this machine has one: whoever reads a store from elsewhere must find
//! it whole. What is known of the source is in a folder of the state directory, as that of a remote.

use std::sync::Arc;

use vellum_crypto::VolumeKeys;
use vellum_store::{
    BlobError, BlobOptions, BlobSource, BlobStore, ObjectStore, RequestLimits, StoreLocation, StoreMode,
};

use crate::config::VolumeConfig;
use crate::error::{Result, VolumeError};
use crate::key_epochs::{KeyEpochs, KeyHome};
use crate::remote::create_remote_dir;
use crate::state::{INDEX_FOLDER, StateDir, WorktreeFile};
use crate::store_identity::{STORE_OBJECT, StoreIdentity};
use crate::tree::{ContentCache, PrefetchLimits};
use crate::volume::{Volume, keep_config_copy, read_config_copy, read_volume_config};

/// Folder of the state directory for what is known of the source.
const SOURCE_FOLDER: &str = "source";

impl Volume {
    /// Where content is read that the store of this volume does not have; none if it is to have all.
    pub fn find_source(&self) -> Result<Option<StoreLocation>> {
        // Only a directory of this machine can have a source: of any other store, the question would cost a request.
        let is_possible = self.objects.local_dir().is_some_and(|dir| dir.join(STORE_OBJECT).exists());
        if !is_possible {
            return Ok(None);
        }
        Ok(StoreIdentity::read_from(&*self.objects, &self.keys)?.and_then(|identity| identity.source))
    }

    /// From now on, content that the store of this volume does not have is read from another store of the volume. Fails
    /// with [`VolumeError::Exists`] if it is read from elsewhere already.
    pub fn set_source(&mut self, source: &StoreLocation) -> Result<()> {
        let wanted = StoreIdentity {
            source: Some(source.clone()),
            ..StoreIdentity::new_random(StoreMode::Shared, None)
        };
        let settled = wanted.settle_in(&*self.objects, &self.keys)?;
        // Another process may have been first, with another source.
        if settled.source.as_ref() != Some(source) {
            return Err(VolumeError::Exists { kind: "source of content", name: source.url.clone() });
        }
        self.attach_source(&RequestLimits::default())
    }

    /// Says in the store that nothing is read from the source any more: the caller has copied everything.
    pub(crate) fn remove_source(&self) -> Result<()> {
        StoreIdentity::replace_source(&*self.objects, &self.keys, None)
    }

    /// From now on the source is at another address, and so are the remotes that were at its old one. Fails with
    /// [`VolumeError::WholeStore`] if there is no source, and with [`VolumeError::Foreign`] if the volume is not there.
    pub fn relocate_source(&mut self, location: &StoreLocation) -> Result<()> {
        let old =
            self.find_source()?.ok_or_else(|| VolumeError::WholeStore(self.objects.describe_location()))?;
        let objects = vellum_store::open_store(location)?;
        if !self.check_remote_config(&*objects)? {
            let place = objects.describe_location();
            return Err(VolumeError::Foreign { place, reason: "it holds no volume".into() });
        }
        // The remotes first: if this is interrupted, the next attempt still finds the old address.
        for remote in self.list_remotes()?.into_iter().filter(|remote| remote.location.url == old.url) {
            self.relocate_remote(&remote, location)?;
        }
        StoreIdentity::replace_source(&*self.objects, &self.keys, Some(location.clone()))?;
        self.attach_source(&RequestLimits::default())
    }

    /// Reads content from the source, if there is one. It is asked for nothing before something is missing here.
    pub(crate) fn attach_source(&mut self, limits: &RequestLimits) -> Result<()> {
        let Some(location) = self.find_source()? else { return Ok(()) };
        let objects = vellum_store::open_store_with_limits(&location, limits)?;
        let place = objects.describe_location();
        let closed = ClosedSource {
            objects: objects.clone(),
            location,
            config: self.config,
            keys: self.keys.clone(),
            home: self.epochs.home_worktree().cloned(),
            owner: self.state.clone(),
        };
        // Opened when content is missing here for the first time: a command that needs none of it sends the source no request.
        let open = move || closed.open_blobs().map_err(|error| as_blob_error(&place, error));
        self.blobs.set_source(BlobSource { objects, open: Box::new(open) });
        // As much is fetched ahead as is worth having under way to the source.
        let ahead = PrefetchLimits::for_requests_at_once(self.blobs.parallel_get_count());
        self.content = Arc::new(ContentCache::new(self.blobs.clone(), ahead));
        Ok(())
    }
}

/// What opens a source.
struct ClosedSource {
    objects: Arc<dyn ObjectStore>,
    location: StoreLocation,
    config: VolumeConfig,
    /// Those of the volume's own store.
    keys: Arc<VolumeKeys>,
    /// Where the first master key is; none if the volume is plain.
    home: Option<StateDir>,
    /// The state directory that has the folder of the source.
    owner: StateDir,
}

impl ClosedSource {
    fn open_blobs(&self) -> Result<BlobStore> {
        let state = self.owner.within(SOURCE_FOLDER);
        create_remote_dir(&self.owner, &state)?;
        // Before its keys and its index are read: what another volume says must not get into this one's folder.
        self.check_config(&state)?;
        let volume = self.config.volume;
        let epochs = match &self.home {
            None => KeyEpochs::for_plain(self.objects.clone(), volume, state.clone()),
            Some(worktree) => {
                let master = worktree.read_master_key()?.ok_or(VolumeError::Locked)?;
                let home = KeyHome { worktree: worktree.clone(), store: state.clone() };
                KeyEpochs::for_encrypted(self.objects.clone(), volume, &master, home, None)?
            }
        };
        let keys = epochs.volume_keys().clone();
        let folder = state.join(INDEX_FOLDER);
        let blobs = BlobStore::open(self.objects.clone(), keys, &folder, BlobOptions::default())?;
        // Without the tag, backup programs copy the folder, which does no harm.
        let _ = state.write_cachedir_tag(INDEX_FOLDER);
        Ok(blobs)
    }

    /// Fails if the source holds another volume. The config never changes: a copy of it, which was checked once, spares
    /// the request, so that what is in the cache is read while the source does not answer.
    fn check_config(&self, state: &StateDir) -> Result<()> {
        let worktree = WorktreeFile::new(
            self.config.volume,
            self.location.url.clone(),
            SOURCE_FOLDER.into(),
            self.config.encrypted,
        );
        let kept = read_config_copy(state, &*self.objects, &worktree)?;
        if kept.is_some_and(|kept| kept.authenticate(&self.keys).is_ok()) {
            return Ok(());
        }
        let foreign = |reason: &str| VolumeError::Foreign {
            place: self.objects.describe_location(),
            reason: reason.into(),
        };
        let stored = read_volume_config(&*self.objects)?.ok_or_else(|| foreign("it holds no volume"))?;
        if stored.config.volume != self.config.volume || stored.config.encrypted != self.config.encrypted {
            return Err(foreign("it holds another volume"));
        }
        stored.authenticate(&self.keys)?;
        keep_config_copy(state, &*self.objects, &stored);
        Ok(())
    }
}

fn as_blob_error(place: &str, error: VolumeError) -> BlobError {
    match error {
        VolumeError::Store(error) => BlobError::Store(error),
        VolumeError::Blob(error) => error,
        error => BlobError::Source { place: place.to_owned(), reason: error.to_string(), kind: error.kind() },
    }
}
