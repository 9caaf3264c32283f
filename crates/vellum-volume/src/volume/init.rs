//! Creates a volume, or a worktree of a volume that a store already has.
//!
//! Invariant: if it is killed at any point, running the same `init` again completes it, and a user who has not seen a
//! recovery code gets one. A volume of another kind than requested is refused.

use std::sync::Arc;

use vellum_chunker::ChunkSizes;
use vellum_crypto::slots::KeySlotId;
use vellum_crypto::{ExchangeSecret, MasterKey, RecoveryCode, VolumeKeys, check_randomness, fill_random};
use vellum_store::{
    EarlyFolder, EarlyRead, EarlyReads, KeyFilter, ObjectKey, ObjectStore, RequestLimits, StoreLocation,
    join_requests,
};
use vellum_types::{ErrorKind, VolumeId};
use zeroize::Zeroizing;

use super::identity::has_own_store;
use super::stored_config::keep_config_copy;
use super::{LEVEL, StoredConfig, Volume, config_object_key, read_volume_config};
use crate::config::VolumeConfig;
use crate::device;
use crate::error::{Result, VolumeError, is_data_loss};
use crate::key_epochs::{self, HeldSlot, KeyEpochs, KeyHome, SLOT_KEY_PREFIX};
use crate::keyring::{self, UnlockedKey};
use crate::refs::{RefKind, WorktreeHead, check_ref_name, compute_ref_key, is_ref_key};
use crate::settings::format_chunk_size;
use crate::state::{DirectoryIdentity, StateDir, WorktreeFile};
use crate::store_check::{
    STORE_CHECK_OBJECT, join_store, refuse_wrong_clock, require_fit_store, set_up_store,
};
use crate::store_identity::{STORE_OBJECT, StoreIdentity};

/// Folder of the default store within the state directory.
pub const DEFAULT_STORE: &str = "store";

/// Most heads of worktrees that are read before anybody asks for them.
const REFS_AT_ONCE: usize = 32;

/// What a new worktree is to be.
#[derive(Debug, Clone)]
pub struct NewWorktree {
    /// The store; the default is in the state directory.
    pub store: Option<StoreLocation>,
    /// Name of the worktree.
    pub name: String,
    /// Whether the volume is to be sealed: one that has to be made is, and one of the other sort is refused.
    pub encrypted: bool,
    /// Whether the name becomes `DEVICE.NAME` if the secret that opens the volume is that of a device.
    pub is_in_device_line: bool,
    /// How content is cut. None: as the volume that is there does; a new one, by default. A volume that is there and cuts
    /// otherwise is refused.
    pub chunk_sizes: Option<ChunkSizes>,
}

impl NewWorktree {
    fn store_location(&self) -> StoreLocation {
        self.store.clone().unwrap_or_else(|| StoreLocation::new(DEFAULT_STORE))
    }

    /// How a volume cuts never changes: equal content would not be found to be equal any more.
    fn check_chunk_sizes(&self, objects: &dyn ObjectStore, found: &VolumeConfig) -> Result<()> {
        if self.chunk_sizes.is_none_or(|wanted| wanted == found.chunker) {
            return Ok(());
        }
        Err(VolumeError::OtherChunkSizes {
            place: objects.describe_location(),
            target: format_chunk_size(found.chunker),
        })
    }
}

/// What `init` made.
pub struct InitialisedVolume {
    /// The volume, open.
    pub volume: Volume,
    /// The code that opens it when all else is lost; shown once. None for plain volumes and existing ones.
    pub recovery: Option<RecoveryCode>,
    /// Whether the store held a volume already, which the worktree now belongs to.
    pub attached: bool,
}

impl InitialisedVolume {
    /// Lets commands find the worktree. Whoever shows the recovery code does it before: a volume must not be finished
    /// whose code nobody has seen.
    pub fn finish_init(&self) -> Result<()> {
        self.volume.state.write_worktree_file(&self.volume.worktree)
    }
}

/// What a store holds before `init`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreContent {
    /// No volume, or no store at all.
    Nothing,
    /// A volume that opens without a secret: it is plain, or was begun by an `init` here.
    OpenVolume,
    /// A volume that a passphrase, a key file or a recovery code opens.
    LockedVolume,
}

/// A store that was looked at before `init`.
pub struct InspectedStore {
    content: StoreContent,
    /// The store, if there is one, and the config of its volume: `init` need not ask for it again.
    objects: Option<Arc<dyn ObjectStore>>,
    config: KnownConfig,
}

/// What is known of the config in a store. One that is there never changes.
enum KnownConfig {
    /// Nobody has asked.
    Unread,
    /// There was none a moment ago.
    Missing,
    /// This is the one.
    Found(StoredConfig),
}

impl InspectedStore {
    fn without_volume(objects: Option<Arc<dyn ObjectStore>>, config: KnownConfig) -> Self {
        Self { content: StoreContent::Nothing, objects, config }
    }

    /// What it holds.
    #[must_use]
    pub fn content(&self) -> StoreContent {
        self.content
    }

    /// As [`Volume::init_volume`], but no command finds the worktree before [`InitialisedVolume::finish_init`]: until
    /// then another `init` goes on with it, and gives another recovery code.
    pub fn prepare_init(
        self,
        state: &StateDir,
        new: &NewWorktree,
        secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
    ) -> Result<InitialisedVolume> {
        check_ref_name(&new.name)?;
        let objects = match self.objects {
            Some(objects) if objects.is_remote() || matches!(self.config, KnownConfig::Found(_)) => objects,
            // The directory may have to be made, with what belongs into it.
            Some(_) | None => {
                vellum_store::create_store(&new.store_location().resolve_against(state.path())?)?
            }
        };
        Volume::prepare_init_on(objects, self.config, state, new, secret)
    }
}

impl Volume {
    /// Looks at what [`Self::init_volume`] would find in the store, without making anything.
    pub fn inspect_store(state: &StateDir, new: &NewWorktree) -> Result<InspectedStore> {
        match open_chosen_store(state, new)? {
            Some(objects) => {
                // A service that holds a volume is waited for once: for its config, and for what the secret is tried on.
                let objects = EarlyReads::begin(objects, choose_slot_reads(new.encrypted));
                let inspected = Self::inspect_objects(objects.clone(), state)?;
                if let KnownConfig::Found(stored) = &inspected.config {
                    // Before somebody is asked for a secret.
                    new.check_chunk_sizes(&*objects, &stored.config)?;
                    objects.expect_reads(choose_attach_reads(stored.config.encrypted)?);
                }
                Ok(inspected)
            }
            None => Ok(InspectedStore::without_volume(None, KnownConfig::Unread)),
        }
    }

    fn inspect_objects(objects: Arc<dyn ObjectStore>, state: &StateDir) -> Result<InspectedStore> {
        // The config is the first object that a volume gets.
        let Some(stored) = read_volume_config(&*objects)? else {
            return Ok(InspectedStore::without_volume(Some(objects), KnownConfig::Missing));
        };
        let config = stored.config;
        let is_own = match state.read_master_key()? {
            Some(master) => stored.authenticate(&VolumeKeys::for_encrypted(&master, config.volume)).is_ok(),
            None => false,
        };
        let content = match (config.encrypted, is_own) {
            (true, false) => StoreContent::LockedVolume,
            (true, true) | (false, _) => StoreContent::OpenVolume,
        };
        Ok(InspectedStore { content, objects: Some(objects), config: KnownConfig::Found(stored) })
    }

    /// Makes the directory of `state` a worktree: of a new volume, or of the one that the store holds already;
    /// then `secret` is asked for what opens it. Run again after a crash, it finishes what it began.
    pub fn init_volume(
        state: &StateDir,
        new: &NewWorktree,
        secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
    ) -> Result<InitialisedVolume> {
        let inspected = match open_chosen_store(state, new)? {
            // Most who call this know that there is a volume: all that attaching reads is requested at once.
            Some(objects) => {
                let objects = EarlyReads::begin(objects, choose_early_reads(new.encrypted)?);
                Self::inspect_objects(objects, state)?
            }
            None => InspectedStore::without_volume(None, KnownConfig::Unread),
        };
        let made = inspected.prepare_init(state, new, secret)?;
        made.finish_init()?;
        Ok(made)
    }

    /// As [`Self::init_volume`], with a store that is open already: counted, wrapped, or not to be named by a URL.
    pub fn init_volume_on(
        objects: Arc<dyn ObjectStore>,
        state: &StateDir,
        new: &NewWorktree,
        secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
    ) -> Result<InitialisedVolume> {
        let made = Self::prepare_init_on(objects, KnownConfig::Unread, state, new, secret)?;
        made.finish_init()?;
        Ok(made)
    }

    /// `known` is what is known of the config of the volume that the store holds.
    fn prepare_init_on(
        objects: Arc<dyn ObjectStore>,
        known: KnownConfig,
        state: &StateDir,
        new: &NewWorktree,
        secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
    ) -> Result<InitialisedVolume> {
        check_ref_name(&new.name)?;
        // Before anything is made: without random bytes, no key and no seal is safe.
        check_randomness().map_err(VolumeError::wrap_local_error("/dev/urandom"))?;
        let (opened, objects) = open_or_create(state, objects, known, new, secret)?;
        let OpenedVolume { config, epochs, is_new, is_begun_here, unkept, device } = opened;
        let name = match &device {
            Some(device) if new.is_in_device_line => device::join_line_name(device, &new.name),
            Some(_) | None => new.name.clone(),
        };
        let StoreLocation { url, credentials } = new.store_location();
        let mut worktree = WorktreeFile {
            credentials,
            device,
            ..WorktreeFile::new(config.volume, url, name.clone(), config.encrypted)
        };
        // Without a store of its own, a copy of the directory would be the same worktree.
        if !has_own_store(&worktree) {
            worktree.identity = Some(DirectoryIdentity::new(state)?);
        }
        let mut volume = Self::assemble_volume(state, objects, epochs, config, worktree)?;
        volume.attach_source(&RequestLimits::default())?;
        // Another's worktree shows that the volume was handed over already: then its code was, too.
        let place = volume.new_head();
        let ours = |head: &WorktreeHead| head.place == place.place && head.host == place.host;
        // Whoever attaches to a volume that was there need not know the others, which may be many; and one that was made just
        // now has none.
        let there = if is_begun_here && !is_new { volume.list_worktrees()? } else { Vec::new() };
        let attached = !(is_begun_here && there.iter().all(|(_, head)| ours(head)));
        let early_code = volume.add_first_worktree(&name, is_new && config.encrypted)?;
        // Not before: a name that is taken leaves nothing behind.
        let mut listed = None;
        if let Some(UnkeptKeys { master, held, slots }) = unkept {
            keyring::hold_slot(&volume, held.slot, &held.exchange)?;
            state.write_master_key(&master)?;
            listed = Some(slots);
        }
        // An `init` that was interrupted may have been told another name.
        for (other, head) in there {
            // Time, mark and operation are those of that attempt. Whatever else differs shows that the worktree was used: it
            // stays.
            if !attached
                && other != name
                && head
                    == (WorktreeHead {
                        created: head.created,
                        mark: head.mark,
                        operation: head.operation,
                        ..place.clone()
                    })
            {
                volume.refs.update_ref(RefKind::Worktree, &other, |_| Ok(None))?;
            }
        }
        // The code of an interrupted `init` may never have been shown: then this gives another one.
        let recovery = match (early_code, state.read_master_key()?) {
            (Some(code), _) => Some(code),
            (None, Some(_)) if !attached => Some(keyring::add_first_recovery_slot(&volume)?),
            (None, _) => None,
        };
        match listed {
            Some(slots) => keyring::record_listed_slots(&volume, &slots)?,
            None => keyring::record_seen_slots(&volume)?,
        }
        Ok(InitialisedVolume { volume, recovery, attached })
    }
}

impl Volume {
    /// Adds the worktree that is being made; fails if the name is that of another directory. A volume that was made just now
    /// gets its recovery code at the same time: that takes requests of its own, and much computing.
    fn add_first_worktree(&self, name: &str, needs_code: bool) -> Result<Option<RecoveryCode>> {
        if !needs_code {
            self.add_worktree_ref(name)?;
            return Ok(None);
        }
        let add_slot = || keyring::add_first_recovery_slot(self);
        let (code, added) = join_requests(&*self.objects, add_slot, || self.add_worktree_ref(name));
        added?;
        code.map(Some)
    }
}

/// Opens the store of a new worktree; none if it has to be made.
fn open_chosen_store(state: &StateDir, new: &NewWorktree) -> Result<Option<Arc<dyn ObjectStore>>> {
    match vellum_store::open_store(&new.store_location().resolve_against(state.path())?) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// What is read of a volume that a store holds, whatever is found in it: all at once, while the secret is tried.
fn choose_early_reads(encrypted: bool) -> Result<Vec<EarlyRead>> {
    let mut reads = choose_attach_reads(encrypted)?;
    reads.extend(choose_slot_reads(encrypted));
    reads.push(early_folder("refs/worktree/", is_ref_key, REFS_AT_ONCE));
    Ok(reads)
}

/// The slots, on which a secret is tried.
pub(super) fn choose_slot_reads(encrypted: bool) -> Vec<EarlyRead> {
    let slots = early_folder(keyring::SLOT_PREFIX, |_| true, keyring::SLOTS_MAX);
    if encrypted { vec![slots] } else { Vec::new() }
}

/// What attaching reads beside them.
fn choose_attach_reads(encrypted: bool) -> Result<Vec<EarlyRead>> {
    let mut reads = vec![EarlyRead::of_index()];
    for name in [STORE_OBJECT, STORE_CHECK_OBJECT] {
        reads.push(EarlyRead::Object(ObjectKey::new(name)?));
    }
    if encrypted {
        // Of the public keys only that of one slot is read.
        reads.push(early_folder(SLOT_KEY_PREFIX, |_| true, 2));
    }
    Ok(reads)
}

/// The refs that must not be there for a worktree to be called so.
fn choose_name_reads(keys: &VolumeKeys, name: &str) -> Result<Vec<EarlyRead>> {
    let kinds = [RefKind::Worktree, RefKind::Tag];
    kinds.into_iter().map(|kind| Ok(EarlyRead::Object(compute_ref_key(keys, kind, name)?))).collect()
}

fn early_folder(folder: &'static str, is_wanted: KeyFilter, objects_max: usize) -> EarlyRead {
    EarlyRead::Folder(EarlyFolder { folder, is_wanted, objects_max })
}

/// A volume that was made, or that a store held.
struct OpenedVolume {
    config: VolumeConfig,
    epochs: Arc<KeyEpochs>,
    /// It was made just now.
    is_new: bool,
    /// Nobody else can have seen its recovery code.
    is_begun_here: bool,
    /// What a secret gave; the state directory does not have it yet.
    unkept: Option<UnkeptKeys>,
    /// The device whose secret that was.
    device: Option<String>,
}

/// What a secret gives.
struct UnkeptKeys {
    master: MasterKey,
    held: HeldSlot,
    /// The objects of all slots, as they were listed.
    slots: Vec<ObjectKey>,
}

/// Opens the volume that a store holds, or makes one; and the store in its mode.
fn open_or_create(
    state: &StateDir,
    objects: Arc<dyn ObjectStore>,
    known: KnownConfig,
    new: &NewWorktree,
    secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
) -> Result<(OpenedVolume, Arc<dyn ObjectStore>)> {
    let mut found = match known {
        KnownConfig::Found(found) => Some(found),
        // One that was made since is found below.
        KnownConfig::Missing if objects.is_remote() => None,
        KnownConfig::Missing | KnownConfig::Unread => read_volume_config(&*objects)?,
    };
    refuse_wrong_clock(&*objects)?;
    if found.is_none() && objects.is_remote() && objects.holds_objects()? {
        // Unless somebody else made a volume in this very moment.
        found = read_volume_config(&*objects)?;
        if found.is_none() {
            return Err(VolumeError::OccupiedStore(objects.describe_location()));
        }
    }
    match found {
        None => {
            // Tried before anything is written: a store that is not fit is left as it was.
            let identity = StoreIdentity::new_random(require_fit_store(state, &*objects)?, None);
            let created = create_volume(state, &objects, new)?;
            let objects = set_up_store(state, objects, created.epochs.volume_keys(), identity)?;
            Ok((created, objects))
        }
        Some(stored) => {
            new.check_chunk_sizes(&*objects, &stored.config)?;
            let joined = join_volume(state, &objects, &stored, new, secret)?;
            let objects = join_store(state, objects, joined.epochs.volume_keys())?;
            // Its seal was checked: the first command need not ask for it again.
            keep_config_copy(state, &*objects, &stored);
            Ok((joined, objects))
        }
    }
}

/// Makes a volume in an empty store. The key is kept before anything needs it, so that a crash loses nothing.
fn create_volume(
    state: &StateDir,
    objects: &Arc<dyn ObjectStore>,
    new: &NewWorktree,
) -> Result<OpenedVolume> {
    let encrypted = new.encrypted;
    let mut id = [0; VolumeId::LEN];
    fill_random(&mut id);
    let volume = VolumeId(id);
    let config =
        VolumeConfig { volume, encrypted, chunker: new.chunk_sizes.unwrap_or_default(), level: LEVEL };
    let epochs = if encrypted {
        let master = match state.read_master_key()? {
            Some(kept) => kept,
            None => MasterKey::generate(),
        };
        // Before the config: a volume whose key is nowhere could never be opened.
        state.write_master_key(&master)?;
        KeyEpochs::for_encrypted(objects.clone(), volume, &master, home_of(state), None)?
    } else {
        KeyEpochs::for_plain(objects.clone(), volume, state.clone())
    };
    objects.put_object(&config_object_key()?, &config.encode(epochs.volume_keys()))?;
    Ok(OpenedVolume { is_new: true, ..OpenedVolume::begun_here(config, epochs) })
}

impl OpenedVolume {
    fn begun_here(config: VolumeConfig, epochs: KeyEpochs) -> Self {
        Self {
            config,
            epochs: Arc::new(epochs),
            is_new: false,
            is_begun_here: true,
            unkept: None,
            device: None,
        }
    }
}

fn home_of(state: &StateDir) -> KeyHome {
    KeyHome { worktree: state.clone(), store: state.clone() }
}

/// Opens the volume that a store holds: with the key of an interrupted `init` if it is the one, else with a secret.
/// Whoever can write to the store can put a plain volume there: it is taken only if one was asked for.
fn join_volume(
    state: &StateDir,
    objects: &Arc<dyn ObjectStore>,
    stored: &StoredConfig,
    new: &NewWorktree,
    secret: impl FnOnce() -> Result<Zeroizing<Vec<u8>>>,
) -> Result<OpenedVolume> {
    let config = stored.config;
    let kept = state.read_master_key()?;
    if !config.encrypted && kept.is_some() {
        let reason = "an encrypted volume was begun here, and the one there is plain".into();
        return Err(VolumeError::Foreign { place: objects.describe_location(), reason });
    }
    // Never silently the other sort: whoever asked for encryption must not go on writing in the clear.
    if config.encrypted != new.encrypted {
        return Err(VolumeError::OtherSort {
            place: objects.describe_location(),
            encrypted: config.encrypted,
        });
    }
    if !config.encrypted {
        let epochs = KeyEpochs::for_plain(objects.clone(), config.volume, state.clone());
        stored.authenticate(epochs.volume_keys())?;
        return Ok(OpenedVolume::begun_here(config, epochs));
    }
    // If the key kept here is another, somebody else made a volume there first, and nothing was ever sealed with it.
    if let Some(master) = kept
        && stored.authenticate(&VolumeKeys::for_encrypted(&master, config.volume)).is_ok()
    {
        let home = home_of(state);
        let epochs = KeyEpochs::for_encrypted(objects.clone(), config.volume, &master, home, None)?;
        return Ok(OpenedVolume::begun_here(config, epochs));
    }
    let UnlockedKey { master, slot, exchange, listed } =
        keyring::unlock_master_key(&**objects, &secret()?, config.volume)?;
    // The slot was of this volume; only now it is known that the config is, too.
    stored.authenticate(&VolumeKeys::for_encrypted(&master, config.volume))?;
    let held = |exchange| -> Result<HeldSlot> { Ok(HeldSlot { slot: slot_id_of(&slot)?, exchange }) };
    let copy = ExchangeSecret::from_bytes(&Zeroizing::new(*exchange.as_bytes()));
    let home = home_of(state);
    let given = Some(held(copy)?);
    let epochs = KeyEpochs::for_encrypted(objects.clone(), config.volume, &master, home, given)?;
    let keys = epochs.volume_keys();
    // With the name of a device before it, the worktree is called otherwise: then these two are read for nothing.
    objects.expect_reads(choose_name_reads(keys, &new.name)?);
    // None of the three depends on another, and each waits for the service.
    let (removed, (refreshed, device)) = join_requests(
        &**objects,
        || keyring::is_slot_removed(&**objects, keys, &slot),
        || {
            join_requests(
                &**objects,
                || epochs.refresh_keys(),
                || device::find_device_of_slot(&**objects, keys, &slot),
            )
        },
    );
    // Reported before the key, because a slot that was removed was given none.
    if removed? {
        return Err(VolumeError::RemovedSlot);
    }
    // With the newest key from the first write on: what is sealed with an older one would be refused later.
    refreshed?;
    let device = match device {
        // Sealed with a later key, which was not here yet when it was read.
        Err(error) if is_data_loss(&error) => device::find_device_of_slot(&**objects, keys, &slot)?,
        device => device?,
    };
    let unkept = Some(UnkeptKeys { master, held: held(exchange)?, slots: listed });
    let epochs = Arc::new(epochs);
    Ok(OpenedVolume { config, epochs, is_new: false, is_begun_here: false, unkept, device })
}

pub(super) fn slot_id_of(slot: &ObjectKey) -> Result<KeySlotId> {
    key_epochs::parse_slot_id(slot).ok_or_else(|| VolumeError::Damaged {
        object: slot.to_string(),
        reason: "its name is not that of a key slot".into(),
    })
}
