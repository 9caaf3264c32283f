//! All keys of one volume and the operations on them: ids, names, sealing, opening.
//!
//! Invariant: a record opens only under the volume, domain and associated data it was sealed with. Keys are wiped
//! on drop. What is sealed is sealed with the newest key epoch that is known. Deliberately absent: the master keys
//! themselves, which are dropped once the subkeys are derived.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use vellum_types::{BlobId, BlobKind, ErrorKind, VolumeId};
use zeroize::{Zeroize, Zeroizing};

use crate::domain::{DomainContexts, RecordDomain};
use crate::epoch::{EpochKeys, KeyEpoch};
use crate::{MasterKey, aead, checksum, nonce};

/// Bytes that sealing adds in a sealed volume: the nonce and the tag.
pub const SEAL_OVERHEAD: usize = nonce::NONCE_LEN + aead::TAG_LEN;
/// Bytes that it adds in a plain volume: the checksum.
pub const PLAIN_OVERHEAD: usize = checksum::CHECKSUM_LEN;

/// Version of the sealed form, the first byte of the associated data.
const SEAL_VERSION: u8 = 1;
/// Version, volume and domain: what stands before the caller's associated data.
const AD_PREFIX_LEN: usize = 1 + VolumeId::LEN + 1;

const CHUNKER_SEALED: &str = "vellum 2026-11-21 v1 sealed chunker";
const CHUNKER_PLAIN: &str = "vellum 2026-11-21 v1 plain chunker";
/// That of the keys by which processes of one volume prove to each other that they have it.
pub(crate) const CONNECTION_SEALED: &str = "vellum 2026-11-27 v1 sealed connection";
const CONNECTION_PLAIN: &str = "vellum 2026-11-27 v1 plain connection";
const BOUNDARY_SEALED: &str = "vellum 2026-11-21 v1 sealed node boundary";
const BOUNDARY_PLAIN: &str = "vellum 2026-11-21 v1 plain node boundary";

/// Why sealed bytes could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    /// Shorter than what sealing adds.
    #[error("it has {found} bytes, fewer than any sealed record has")]
    Short {
        /// How many bytes there were.
        found: usize,
    },
    /// The tag or checksum does not match: damaged, from another place, or sealed with another key.
    #[error(
        "authentication failed: it is damaged, was replaced by another object, or is sealed with another key"
    )]
    Forged,
    /// It names a key epoch whose keys are not known here.
    #[error("it is sealed with the key of key epoch {epoch}, which is not known here, or is damaged")]
    NewerKey {
        /// The key epoch that it names.
        epoch: KeyEpoch,
    },
}

impl UnsealError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        ErrorKind::Corrupt
    }
}

/// Finds the keys of later epochs when something is sealed with them.
pub trait NewerKeySource: Send + Sync {
    /// Adds to `keys` what can be found. It must not open records with them.
    fn find_newer_keys(&self, keys: &VolumeKeys);
}

struct DomainKeys {
    seal: [u8; 32],
    id: [u8; 32],
    name: [u8; 32],
}

impl DomainKeys {
    fn derive(contexts: &DomainContexts, material: &[u8]) -> Self {
        Self {
            seal: blake3::derive_key(contexts.seal, material),
            id: blake3::derive_key(contexts.id, material),
            name: blake3::derive_key(contexts.name, material),
        }
    }
}

impl Drop for DomainKeys {
    fn drop(&mut self) {
        self.seal.zeroize();
        self.id.zeroize();
        self.name.zeroize();
    }
}

/// The keys of one volume; cheap to share in an `Arc`. Volumes whose key was never changed take no lock.
pub struct VolumeKeys {
    volume: VolumeId,
    plain: bool,
    // Boxed, so that moving the struct leaves no copies of keys behind.
    domains: Box<[DomainKeys; RecordDomain::COUNT]>,
    chunker: Zeroizing<[u8; 32]>,
    boundary_seed: u64,
    connection: Zeroizing<[u8; 32]>,
    /// Number of the newest key epoch.
    newest: AtomicU32,
    /// The keys of the epochs after the first, in their order.
    later: RwLock<Vec<Arc<EpochKeys>>>,
    source: OnceLock<Arc<dyn NewerKeySource>>,
}

impl VolumeKeys {
    /// The keys of an encrypted volume.
    #[must_use]
    pub fn for_encrypted(master: &MasterKey, volume: VolumeId) -> Self {
        let material = master.as_bytes();
        Self::derive_keys(
            volume,
            false,
            material,
            &RecordDomain::SEALED_CONTEXTS,
            [CHUNKER_SEALED, BOUNDARY_SEALED, CONNECTION_SEALED],
        )
    }

    /// The keys of a volume without a secret: ids are public hashes, sealing adds a checksum.
    #[must_use]
    pub fn for_plain(volume: VolumeId) -> Self {
        let others = [CHUNKER_PLAIN, BOUNDARY_PLAIN, CONNECTION_PLAIN];
        Self::derive_keys(volume, true, &[], &RecordDomain::PLAIN_CONTEXTS, others)
    }

    fn derive_keys(
        volume: VolumeId,
        plain: bool,
        material: &[u8],
        contexts: &[DomainContexts; RecordDomain::COUNT],
        [chunker, boundary, connection]: [&str; 3],
    ) -> Self {
        let domains = Box::new(std::array::from_fn(|i| DomainKeys::derive(&contexts[i], material)));
        let chunker = Zeroizing::new(blake3::derive_key(chunker, material));
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = blake3::derive_key(boundary, material);
        let boundary_seed = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]);
        let connection = Zeroizing::new(blake3::derive_key(connection, material));
        let later = RwLock::default();
        let newest = AtomicU32::new(KeyEpoch::FIRST.number());
        let source = OnceLock::new();
        Self { volume, plain, domains, chunker, boundary_seed, connection, newest, later, source }
    }

    /// The key epoch that records are sealed with.
    #[must_use]
    pub fn newest_epoch(&self) -> KeyEpoch {
        KeyEpoch::from_number(self.newest.load(Ordering::Acquire)).unwrap_or(KeyEpoch::LAST)
    }

    /// Adds the keys of the epoch after the newest. From then on, records are sealed with them. Others than the next are
    /// left out: another thread may have added them.
    pub fn add_epoch(&self, keys: EpochKeys) {
        // The number is raised and the keys are added under one lock: who reads the new number at once waits in
        // `find_epoch_keys` until the keys are there.
        let mut later = self.later.write();
        if self.newest_epoch().next() == Some(keys.epoch()) && !self.plain {
            self.newest.store(keys.epoch().number(), Ordering::Release);
            later.push(Arc::new(keys));
        }
    }

    /// Whether the keys of an epoch are those that are known here.
    #[must_use]
    pub fn has_epoch_keys(&self, keys: &EpochKeys) -> bool {
        self.find_epoch_keys(keys.epoch()).is_some_and(|known| known.has_equal_keys(keys))
    }

    /// Whether this is the master key of the first epoch.
    #[must_use]
    pub fn is_first_master(&self, master: &MasterKey) -> bool {
        // The master key itself was dropped after the derivation. Derived keys are equal only if what they were
        // derived from is.
        let first = Self::for_encrypted(master, self.volume);
        let index = RecordDomain::Config.table_index();
        !self.plain && first.domains[index].seal == self.domains[index].seal
    }

    /// Where keys are looked for when something is sealed with later ones; set once.
    pub fn set_newer_key_source(&self, source: Arc<dyn NewerKeySource>) {
        // A second source is dropped: the first already looks for all keys of this volume.
        let _ = self.source.set(source);
    }

    fn find_epoch_keys(&self, epoch: KeyEpoch) -> Option<Arc<EpochKeys>> {
        // The first epoch's keys stand in `domains`: the list begins with epoch 1.
        let place = usize::try_from(epoch.previous()?.number()).ok()?;
        self.later.read().get(place).cloned()
    }

    /// Returns whether the volume has no secret.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The volume whose keys these are.
    #[must_use]
    pub fn volume_id(&self) -> VolumeId {
        self.volume
    }

    /// Bytes that sealing adds in this volume.
    #[must_use]
    pub fn seal_overhead(&self) -> usize {
        if self.plain { PLAIN_OVERHEAD } else { SEAL_OVERHEAD }
    }

    /// The identity of a blob with this content.
    #[must_use]
    pub fn compute_blob_id(&self, kind: BlobKind, plaintext: &[u8]) -> BlobId {
        BlobId(self.compute_record_id(RecordDomain::Blob(kind), plaintext))
    }

    /// The identity of any record with this content, such as a snapshot's.
    #[must_use]
    pub fn compute_record_id(&self, domain: RecordDomain, plaintext: &[u8]) -> [u8; 32] {
        blake3::keyed_hash(&self.domain_keys(domain).id, plaintext).into()
    }

    /// An object name that tells an outsider nothing about `name`.
    #[must_use]
    pub fn compute_name_id(&self, domain: RecordDomain, name: &[u8]) -> [u8; 32] {
        blake3::keyed_hash(&self.domain_keys(domain).name, name).into()
    }

    /// Appends the sealed form of `plaintext` to `out`: nonce ‖ ciphertext ‖ tag, or in a plain volume
    /// plaintext ‖ checksum. It grows by [`Self::seal_overhead`].
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    pub fn seal_record(&self, domain: RecordDomain, aad: &[u8], plaintext: &[u8], out: &mut Vec<u8>) {
        // Volumes whose key was never changed, most of them, stop at the comparison and take no lock for a record.
        let newest = self.newest_epoch();
        if newest != KeyEpoch::FIRST
            && let Some(keys) = self.find_epoch_keys(newest)
        {
            return keys.seal_record(domain, aad, plaintext, out);
        }
        let ad = build_associated_data(self.volume, domain, aad);
        let key = &self.domain_keys(domain).seal;
        if self.plain {
            checksum::append_checksum(key, &ad, plaintext, out);
        } else {
            aead::seal_plaintext(key, &nonce::generate_nonce(), &ad, plaintext, out);
        }
    }

    /// Appends the plaintext of `sealed` to `out`; on an error `out` is as it was.
    pub fn open_record(
        &self,
        domain: RecordDomain,
        aad: &[u8],
        sealed: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UnsealError> {
        self.open_record_in_epoch(domain, aad, sealed, out).map(|_| ())
    }

    /// As [`Self::open_record`]; gives the key epoch that the record is sealed with.
    pub fn open_record_in_epoch(
        &self,
        domain: RecordDomain,
        aad: &[u8],
        sealed: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<KeyEpoch, UnsealError> {
        if sealed.len() < self.seal_overhead() {
            return Err(UnsealError::Short { found: sealed.len() });
        }
        // A plain record has no nonce: it begins with the content itself, which may look like any number.
        let named = if self.plain { None } else { KeyEpoch::named_by_nonce(sealed) };
        let newest = self.newest_epoch();
        let is_known = |epoch: &KeyEpoch| *epoch <= newest;
        let find_keys = |epoch: KeyEpoch| self.find_epoch_keys(epoch).ok_or(UnsealError::NewerKey { epoch });
        // The epoch that is named is tried first, since nearly all that name one were sealed in it.
        if let Some(epoch) = named.filter(is_known)
            && find_keys(epoch)?.open_record(domain, aad, sealed, out).is_ok()
        {
            return Ok(epoch);
        }
        // The random nonce of a record of the first epoch may look like a number.
        let forged = match self.open_in_first_epoch(domain, aad, sealed, out) {
            Ok(()) => return Ok(KeyEpoch::FIRST),
            Err(error) => error,
        };
        let Some(epoch) = named.filter(|epoch| !is_known(epoch)) else { return Err(forged) };
        // Only now, after the first epoch's keys failed: a search asks the store, and one record in 65,536 of the
        // first epoch would cause one for nothing.
        if let Some(source) = self.source.get() {
            source.find_newer_keys(self);
        }
        find_keys(epoch)?.open_record(domain, aad, sealed, out).map(|()| epoch)
    }

    fn open_in_first_epoch(
        &self,
        domain: RecordDomain,
        aad: &[u8],
        sealed: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UnsealError> {
        let ad = build_associated_data(self.volume, domain, aad);
        let key = &self.domain_keys(domain).seal;
        if self.plain {
            out.extend_from_slice(checksum::verify_checksum(key, &ad, sealed).ok_or(UnsealError::Forged)?);
            return Ok(());
        }
        aead::open_sealed(key, &ad, sealed, out).map_err(|aead::AuthenticationFailure| UnsealError::Forged)
    }

    /// The secret from which chunk boundaries are drawn.
    #[must_use]
    pub fn chunker_key(&self) -> [u8; 32] {
        *self.chunker
    }

    /// The seed of the map's node boundaries.
    #[must_use]
    pub fn boundary_seed(&self) -> u64 {
        self.boundary_seed
    }

    /// The secret that processes which have the key of an epoch share, and prove to each other; None if the key of the
    /// epoch is not known here. In a plain volume it is no secret.
    #[must_use]
    pub fn connection_key(&self, epoch: KeyEpoch) -> Option<Zeroizing<[u8; 32]>> {
        if epoch == KeyEpoch::FIRST {
            return Some(self.connection.clone());
        }
        self.find_epoch_keys(epoch).map(|keys| keys.connection_key().clone())
    }

    /// Looks for the keys of later epochs, if there is a place to look.
    pub fn look_for_newer_keys(&self) {
        if let Some(source) = self.source.get() {
            source.find_newer_keys(self);
        }
    }

    fn domain_keys(&self, domain: RecordDomain) -> &DomainKeys {
        &self.domains[domain.table_index()]
    }
}

pub(crate) fn build_associated_data(volume: VolumeId, domain: RecordDomain, aad: &[u8]) -> Vec<u8> {
    let mut ad = Vec::with_capacity(AD_PREFIX_LEN + aad.len());
    // These three have a fixed length, so that no choice of the caller's part imitates another volume or domain.
    ad.push(SEAL_VERSION);
    ad.extend_from_slice(volume.as_bytes());
    ad.push(domain.as_byte());
    ad.extend_from_slice(aad);
    ad
}

impl fmt::Debug for VolumeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, plain, .. } = self;
        f.debug_struct("VolumeKeys").field("volume", volume).field("plain", plain).finish_non_exhaustive()
    }
}
