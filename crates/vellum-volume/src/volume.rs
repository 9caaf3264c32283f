//! An open volume: its objects, keys, blobs, nodes, refs and catalog, used from one worktree.
//!
//! Invariant: a volume is opened only if its config is authenticated by the key and is the one that the worktree
//! was made with; a plain volume planted for an encrypted one is refused.

mod by_address;
mod identity;
mod init;
mod known_names;
mod lines;
mod stored_config;
mod tags;
mod worktrees;

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use vellum_crypto::{VolumeKeys, check_randomness};
use vellum_map::{MapRoot, MapShape, NodeCache};
use vellum_store::{BlobOptions, BlobStore, DiskReserve, ObjectStore, RequestLimits, StoreLocation};
use vellum_types::SnapshotId;

pub use self::by_address::StoreAccess;
use self::init::slot_id_of;
pub use self::init::{DEFAULT_STORE, InitialisedVolume, InspectedStore, NewWorktree, StoreContent};
pub use self::known_names::{KnownName, NameKind};
pub use self::lines::{is_outside_line, name_outside_line};
use self::stored_config::open_key_epochs;
pub(crate) use self::stored_config::{
    CONFIG_COPY_FILE, StoredConfig, config_object_key, keep_config_copy, read_config_copy, read_volume_config,
};
pub(crate) use self::tags::decode_tag_target;
pub(crate) use self::worktrees::decode_worktree_head;
use crate::catalog::SnapshotCatalog;
use crate::config::VolumeConfig;
use crate::error::{Result, VolumeError};
use crate::key_epochs::{GivenKeys, HeldSlot, KeyEpochs};
use crate::keyring::{UnlockedKey, unlock_master_key};
use crate::lost::DamageRecorder;
use crate::operations::{FORGOTTEN_MAX, OperationEffect, OperationSink};
use crate::record::SnapshotRecord;
use crate::refs::{
    DamagedRef, RefKind, RefStore, StoredRef, UnsnapshottedTree, WorktreeHead, check_ref_name,
};
use crate::session::{IndexReadingTime, WriteSession, date_after_parent};
use crate::settings::Settings;
use crate::state::{DirectoryIdentity, INDEX_FOLDER, RESERVE_FILE, StateDir, WorktreeFile};
use crate::store_check::open_known_store;
use crate::tree::{ContentCache, NodeLoader, PrefetchLimits};

/// Memory for decoded nodes, bytes: holds the hot part of a map of some million files.
const NODE_CACHE_BYTES: u64 = 64 << 20;

/// zstd level of new volumes: source text at over 120 MB/s a core, and close to what higher levels reach.
const LEVEL: u8 = 3;

/// Refs of one kind with what each says, by name; and those that cannot be read.
pub type RefListing<T> = (Vec<(String, T)>, Vec<DamagedRef>);

/// An open volume, as seen from one worktree.
pub struct Volume {
    /// Where its objects are.
    pub objects: Arc<dyn ObjectStore>,
    /// Its keys.
    pub keys: Arc<VolumeKeys>,
    /// Where newer keys come from.
    pub epochs: Arc<KeyEpochs>,
    /// Its chunks and nodes.
    pub blobs: Arc<BlobStore>,
    /// Decoded nodes.
    pub nodes: Arc<NodeCache<NodeLoader>>,
    /// Decoded content of published states.
    pub(crate) content: Arc<ContentCache>,
    /// Its refs.
    pub refs: RefStore,
    /// Its snapshot records.
    pub catalog: SnapshotCatalog,
    /// What it is.
    pub config: VolumeConfig,
    /// The worktree's state directory.
    pub state: StateDir,
    /// The worktree.
    pub worktree: WorktreeFile,
    /// Those that hold for it, when they were asked for.
    pub(crate) settings: OnceLock<Settings>,
    /// Remembers what of it could not be read.
    pub(crate) damage: Arc<DamageRecorder>,
}

impl Volume {
    /// Makes `state` a worktree of this volume, which stands on no snapshot yet.
    pub fn fork_into(&self, state: &StateDir, name: &str) -> Result<Self> {
        check_ref_name(name)?;
        if let Some(master) = self.state.read_master_key()? {
            // The fork opens the same volume without being asked for a secret again.
            state.write_master_key(&master)?;
        }
        let location = locate_store(&self.state, &self.worktree)?;
        let worktree = WorktreeFile {
            credentials: location.credentials,
            identity: Some(DirectoryIdentity::new(state)?),
            device: self.worktree.device.clone(),
            ..WorktreeFile::new(self.config.volume, location.url, name.into(), self.config.encrypted)
        };
        // With the slot, the new worktree is given the keys of later epochs by itself.
        if let Some(held) = self.state.read_held_slot()? {
            state.write_held_slot(held.slot, &held.exchange)?;
        }
        let kept = self.state.read_epoch_masters(self.config.volume)?;
        if !kept.is_empty() {
            state.write_epoch_masters(self.config.volume, &kept)?;
        }
        let epochs = open_key_epochs(state, self.objects.clone(), &self.config)?;
        // What this worktree has seen of the store, the new one need not find out.
        state.write_seen_counters(&self.state.read_seen_counters()?)?;
        let mut fork = Self::assemble_volume(state, self.objects.clone(), epochs, self.config, worktree)?;
        fork.attach_source(&RequestLimits::default())?;
        // Whoever forks does so from this worktree.
        fork.refs = fork.refs.with_operations(&self.worktree.worktree);
        fork.add_worktree_ref(name)?;
        fork.refs = fork.refs.with_operations(name);
        self.copy_remotes_to(state)?;
        // Last: only with this file is it a worktree. Until then, the same command can begin anew.
        state.write_worktree_file(&fork.worktree)?;
        Ok(fork)
    }

    /// Returns a state directory that has no key with the one that a secret opens, for this process alone. Fails with
    /// [`VolumeError::WrongSecret`] if it opens none.
    pub fn unlock_state_dir(state: &StateDir, secret: &[u8], limits: &RequestLimits) -> Result<StateDir> {
        let worktree = state.read_worktree_file()?;
        let wrong = |_| VolumeError::Decode {
            what: state.join("worktree.json").display().to_string(),
            source: vellum_types::DecodeError::Invalid("volume"),
        };
        let volume = worktree.volume.parse().map_err(wrong)?;
        let objects = vellum_store::open_store_with_limits(&locate_store(state, &worktree)?, limits)?;
        // Whether the key is that of the volume is checked when the volume is opened.
        let UnlockedKey { master, slot, exchange, .. } = unlock_master_key(&*objects, secret, volume)?;
        let held = HeldSlot { slot: slot_id_of(&slot)?, exchange };
        Ok(state.with_given_keys(GivenKeys::new(master, held)))
    }

    /// Opens the volume that a worktree belongs to.
    pub fn open(state: &StateDir) -> Result<Self> {
        Self::open_with_limits(state, &RequestLimits::default())
    }

    /// As [`Self::open`], with limits of requests to a service.
    pub fn open_with_limits(state: &StateDir, limits: &RequestLimits) -> Result<Self> {
        let location = locate_store(state, &state.read_worktree_file()?)?;
        Self::open_on_with_limits(vellum_store::open_store_with_limits(&location, limits)?, state, limits)
    }

    /// Opens the volume of a worktree whose store was moved to `store`, and remembers that. A store that holds another
    /// volume is refused.
    pub fn relocate_store(state: &StateDir, store: &StoreLocation) -> Result<Self> {
        let location = store.resolve_against(state.path())?;
        // Whether the volume is there, only the store at the new place can say.
        state.remove_file(CONFIG_COPY_FILE)?;
        let volume = Self::open_on(vellum_store::open_store(&location)?, state)?;
        // The first key is that of the volume; the later ones are those of a store.
        let volume = match volume.epochs.forget_keys_of_other_store()? {
            true => Self::open_on(vellum_store::open_store(&location)?, state)?,
            false => volume,
        };
        // In the state directory it is remembered by its relative name, as when it was made.
        let within = Path::new(&location.url).strip_prefix(state.path()).ok().and_then(Path::to_str);
        let store = within.map_or(location.url.clone(), str::to_owned);
        let credentials = location.credentials;
        state.write_worktree_file(&WorktreeFile { store, credentials, ..state.read_worktree_file()? })?;
        Ok(volume)
    }

    /// As [`Self::open`], with a store that is open already.
    pub fn open_on(objects: Arc<dyn ObjectStore>, state: &StateDir) -> Result<Self> {
        Self::open_on_with_limits(objects, state, &RequestLimits::default())
    }

    fn open_on_with_limits(
        objects: Arc<dyn ObjectStore>,
        state: &StateDir,
        limits: &RequestLimits,
    ) -> Result<Self> {
        let worktree = state.read_worktree_file()?;
        // Those of early versions have no such file. Who may not write there may still read.
        let _ = state.hide_from_git();
        // As for a new volume: without random bytes, no seal is safe.
        check_randomness().map_err(VolumeError::wrap_local_error("/dev/urandom"))?;
        let foreign =
            |reason: &str| VolumeError::Foreign { place: objects.describe_location(), reason: reason.into() };
        let kept = read_config_copy(state, &*objects, &worktree)?;
        let is_copy = kept.is_some();
        let found = kept.map_or_else(|| read_volume_config(&*objects), |kept| Ok(Some(kept)))?;
        let stored = found.ok_or_else(|| foreign("it holds no volume"))?;
        let config = stored.config;
        if config.volume.to_string() != worktree.volume {
            return Err(foreign("its volume has another id"));
        }
        // Whoever can write to the store can put a plain config there: the worktree's own file decides.
        if config.encrypted != worktree.encrypted {
            return Err(foreign(
                "this worktree's volume is encrypted, and the one there is plain, or the reverse",
            ));
        }
        let epochs = open_key_epochs(state, objects.clone(), &config)?;
        match stored.authenticate(epochs.volume_keys()) {
            Ok(()) => {}
            Err(_) if is_copy => {
                // Only the copy is damaged, as far as is known.
                state.remove_file(CONFIG_COPY_FILE)?;
                return Self::open_on_with_limits(objects, state, limits);
            }
            Err(error) => return Err(error),
        }
        if !is_copy {
            keep_config_copy(state, &*objects, &stored);
        }
        let objects = open_known_store(state, objects, epochs.volume_keys())?;
        let mut volume = Self::assemble_volume(state, objects, epochs, config, worktree)?;
        volume.attach_source(limits)?;
        Ok(volume)
    }

    /// The volume as seen from another of its worktrees.
    #[must_use]
    pub fn with_worktree(self, name: &str) -> Self {
        let refs = self.refs.with_operations(name);
        Self { worktree: WorktreeFile { worktree: name.into(), ..self.worktree }, refs, ..self }
    }

    pub(crate) fn assemble_volume(
        state: &StateDir,
        objects: Arc<dyn ObjectStore>,
        epochs: Arc<KeyEpochs>,
        config: VolumeConfig,
        worktree: WorktreeFile,
    ) -> Result<Self> {
        let keys = epochs.volume_keys().clone();
        let options = BlobOptions { level: i32::from(config.level), ..BlobOptions::default() };
        let blobs =
            Arc::new(BlobStore::open(objects.clone(), keys.clone(), &state.join(INDEX_FOLDER), options)?);
        // Only this folder can be made anew from the store: the rest of the state directory belongs into backups.
        let _ = state.write_cachedir_tag(INDEX_FOLDER);
        let loader = NodeLoader::new(blobs.clone(), MapShape::new(keys.boundary_seed()), &keys)?;
        let nodes = Arc::new(NodeCache::new(loader, NODE_CACHE_BYTES));
        let limits = PrefetchLimits::for_requests_at_once(objects.parallel_get_count());
        let content = Arc::new(ContentCache::new(blobs.clone(), limits));
        let refs = RefStore::open(objects.clone(), epochs.clone(), state.clone())?
            .with_operations(&worktree.worktree);
        let catalog = SnapshotCatalog::open(objects.clone(), epochs.clone(), state.clone());
        let damage = Arc::new(DamageRecorder::new(state.clone()));
        let recorder = damage.clone();
        blobs.set_unreadable_observer(move |unreadable| recorder.record_unreadable(unreadable));
        let state = state.clone();
        Ok(Self {
            objects,
            keys,
            epochs,
            blobs,
            nodes,
            content,
            refs,
            catalog,
            config,
            state,
            worktree,
            settings: OnceLock::new(),
            damage,
        })
    }

    /// Boundary parameters of this volume's maps.
    #[must_use]
    pub fn map_shape(&self) -> MapShape {
        MapShape::new(self.keys.boundary_seed())
    }

    /// The root of the map that holds nothing: what a worktree is before its first snapshot.
    #[must_use]
    pub fn empty_root(&self) -> MapRoot {
        self.nodes.loader().empty_root()
    }

    /// Begins to write blobs, and reads the index.
    pub fn begin_write_session(&self) -> Result<WriteSession> {
        WriteSession::begin_session(self, IndexReadingTime::AtBegin)
    }

    /// Begins to write blobs. The index of a service is read when it is needed: for whoever often has little to store, and does
    /// not ask by itself what is stored.
    pub fn begin_lazy_write_session(&self) -> Result<WriteSession> {
        // To read the index of a directory costs nothing, and others may have stored the same.
        let index_reading = match self.objects.is_remote() {
            true => IndexReadingTime::WhenNeeded,
            false => IndexReadingTime::AtBegin,
        };
        WriteSession::begin_session(self, index_reading)
    }

    /// Whether another worktree of the volume is in the same store.
    pub(crate) fn has_same_store(&self, other: &StateDir) -> bool {
        let url =
            |state: &StateDir, worktree: &WorktreeFile| locate_store(state, worktree).map(|found| found.url);
        let theirs = other.read_worktree_file().and_then(|worktree| url(other, &worktree));
        url(&self.state, &self.worktree).is_ok_and(|own| theirs.is_ok_and(|theirs| own == theirs))
    }

    /// Keeps some room on the disks of store and state for what frees more.
    pub fn ensure_reserves(&self) {
        self.objects.ensure_reserve();
        self.with_state_reserve(DiskReserve::ensure_reserve);
    }

    /// Gives that room up where a disk is full. To be called by what frees more; [`Self::ensure_reserves`] makes it again.
    pub fn release_reserves(&self) {
        self.objects.release_reserve();
        self.with_state_reserve(DiskReserve::release_if_full);
    }

    /// The state directory has a reserve of its own only if the store is on another disk.
    fn with_state_reserve(&self, act: impl FnOnce(&DiskReserve<File>)) {
        let Ok(dir) = File::open(self.state.path()) else { return };
        let store = self.objects.local_dir().and_then(|store| store.metadata().ok());
        let is_shared = match (store, dir.metadata()) {
            (Some(store), Ok(state)) => store.dev() == state.dev(),
            // A service is on no disk of this machine.
            (None, _) | (_, Err(_)) => false,
        };
        if !is_shared {
            act(&DiskReserve::new(dir, RESERVE_FILE));
        }
    }

    /// Records a snapshot and lets this worktree stand on it. What the record names must be durable already. It
    /// comes after its parents, whatever its time and counter say: clocks go back, and a history must not. Its own time stays
    /// if that of a parent is in the future.
    pub fn commit_snapshot(&self, mut record: SnapshotRecord) -> Result<SnapshotId> {
        let worktree = record.worktree.clone();
        let id = self.prepare_snapshot(&mut record)?;
        self.commit_prepared_snapshot(&worktree, &record, None)?;
        tracing::info!(worktree, snapshot = %id, "snapshot committed");
        self.ensure_reserves();
        Ok(id)
    }

    /// Records a snapshot that has its id already, and lets a worktree stand on it, unless somebody has its lease. `live`:
    /// what is published of the worktree since the snapshot; nothing, if that is what it holds.
    pub fn commit_prepared_snapshot(
        &self,
        worktree: &str,
        record: &SnapshotRecord,
        live: Option<UnsnapshottedTree>,
    ) -> Result<SnapshotId> {
        let id = record.compute_id(&self.keys);
        // The record before the ref: a head must never name a snapshot that is not there.
        self.catalog.store_record_during(record, |put| {
            let mut sink = OperationSink { effects: vec![OperationEffect::Made(id)], put };
            self.refs.update_ref_recording(RefKind::Worktree, worktree, &mut sink, |old| {
                self.change_free_head(worktree, old, |head| (head.head, head.live) = (Some(id), live))
            })
        })?;
        Ok(id)
    }

    /// Records a snapshot in a line that no worktree has.
    pub fn commit_outside_snapshot(&self, mut record: SnapshotRecord) -> Result<SnapshotId> {
        let id = self.prepare_snapshot(&mut record)?;
        self.record_around(OperationEffect::Made(id), || self.catalog.store_record(&record))
    }

    /// Puts a new record behind its parents, and gives it its identity; returns the id.
    pub(crate) fn prepare_snapshot(&self, record: &mut SnapshotRecord) -> Result<SnapshotId> {
        for parent in &record.parents {
            let parent = self.catalog.get_record(parent)?;
            record.time = date_after_parent(record.time, parent.time);
            record.counter = record.counter.max(parent.counter.saturating_add(1));
        }
        self.assign_snapshot_id(record)
    }

    /// Gives a new record its identity, and with it its id; the tree and the statistics may follow later.
    pub fn assign_snapshot_id(&self, record: &mut SnapshotRecord) -> Result<SnapshotId> {
        record.clamp_fields();
        getrandom::fill(&mut record.nonce)
            .map_err(|error| VolumeError::wrap_local_error("/dev/urandom")(error.into()))?;
        Ok(record.compute_id(&self.keys))
    }

    /// The worktrees whose refs can be read, by name, and those that cannot.
    pub fn list_readable_worktrees(&self) -> Result<RefListing<WorktreeHead>> {
        self.list_decoded_refs(RefKind::Worktree, decode_worktree_head)
    }

    pub(crate) fn list_decoded_refs<T>(
        &self,
        kind: RefKind,
        decode: impl Fn(&StoredRef) -> Result<T>,
    ) -> Result<RefListing<T>> {
        let (refs, mut damaged) = self.refs.list_readable_refs(kind)?;
        let mut readable = Vec::with_capacity(refs.len());
        for found in refs {
            match decode(&found) {
                Ok(value) => readable.push((found.name, value)),
                Err(error) => damaged.push(DamagedRef {
                    kind,
                    key: self.refs.ref_object_key(kind, &found.name)?,
                    error,
                }),
            }
        }
        Ok((readable, damaged))
    }

    /// Does what an operation is to tell. It is recorded before: if this is killed, the next operation looks whether it was done,
    /// and the record is not lost.
    pub(crate) fn record_around<T>(
        &self,
        effect: OperationEffect,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.record_effects_around(vec![effect], act)
    }

    /// As [`Self::record_around`], for several effects of one operation.
    pub(crate) fn record_effects_around<T>(
        &self,
        effects: Vec<OperationEffect>,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        // Who was revoked before the key was changed elsewhere must not read the record.
        self.epochs.refresh_keys()?;
        let pending = self.refs.begin_recorded(effects)?;
        // After a failure the record stays without a name, which says that it was not carried out.
        let done = act()?;
        pending.map_or(Ok(()), |pending| self.refs.finish_operation(pending))?;
        Ok(done)
    }

    /// Forgets a snapshot, unless a worktree stands on it or a tag names it. Fails with [`VolumeError::MissingRecord`] if the
    /// store has no such snapshot.
    pub fn forget_snapshot(&self, id: &SnapshotId) -> Result<()> {
        match self.forget_snapshots(&[*id])?.as_slice() {
            [] => Err(VolumeError::MissingRecord(*id)),
            _ => Ok(()),
        }
    }

    /// Forgets snapshots, unless [`Self::check_forgettable`] refuses one of them: then all stay. Returns those that it forgot;
    /// others are not there any more.
    pub fn forget_snapshots(&self, ids: &[SnapshotId]) -> Result<Vec<SnapshotId>> {
        self.forget_recording(ids, OperationEffect::Forgotten)
    }

    /// Forgets a snapshot that a merge had made for itself. Fails as [`Self::forget_snapshot`] does.
    pub(crate) fn discard_snapshot(&self, id: &SnapshotId) -> Result<()> {
        match self.forget_recording(&[*id], OperationEffect::Discarded)?.as_slice() {
            [] => Err(VolumeError::MissingRecord(*id)),
            _ => Ok(()),
        }
    }

    fn forget_recording(
        &self,
        ids: &[SnapshotId],
        effect: impl Fn(SnapshotId) -> OperationEffect,
    ) -> Result<Vec<SnapshotId>> {
        self.check_forgettable(ids)?;
        // Forgetting is how room is made on a full disk, so it may use the reserve.
        self.release_reserves();
        let mut forgotten = Vec::with_capacity(ids.len());
        for part in ids.chunks(FORGOTTEN_MAX) {
            // Before they are gone: what is recorded and was not done can be seen to be so.
            let effects = part.iter().copied().map(&effect).collect();
            let pending = self.refs.begin_recorded(effects)?;
            forgotten.extend(self.catalog.forget_snapshots(part)?);
            pending.map_or(Ok(()), |pending| self.refs.finish_operation(pending))?;
        }
        self.restore_pinned(forgotten)
    }

    /// Fails with [`VolumeError::InUse`] if a worktree stands on one of these snapshots, a tag names it, or it is pinned.
    pub fn check_forgettable(&self, ids: &[SnapshotId]) -> Result<()> {
        let wanted: HashSet<_> = ids.iter().collect();
        let in_use = |id: SnapshotId, reason| -> Result<()> {
            Err(VolumeError::InUse { what: format!("snapshot {}", self.short_id(&id)?), reason })
        };
        for (name, head) in self.list_worktrees()? {
            if let Some(id) = head.head.filter(|id| wanted.contains(id)) {
                return in_use(id, format!("the worktree '{name}' stands on it"));
            }
        }
        if let Some((name, id)) = self.list_tags()?.into_iter().find(|(_, id)| wanted.contains(id)) {
            return in_use(id, format!("the tag '{name}' names it; remove the tag first"));
        }
        self.check_unpinned(&wanted)
    }
}

/// Where a worktree's store is. One within the state directory is remembered by its relative name, so that a worktree can
/// be moved.
pub(crate) fn locate_store(state: &StateDir, worktree: &WorktreeFile) -> Result<StoreLocation> {
    let kept = StoreLocation { url: worktree.store.clone(), credentials: worktree.credentials.clone() };
    Ok(kept.resolve_against(state.path())?)
}
