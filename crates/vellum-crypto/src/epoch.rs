//! Key epochs: which of a volume's master keys a record is sealed with, and the sealing keys of the later ones.
//!
//! The nonce tells the epoch: that of the first one is random in all its bytes, that of a later one begins with its
//! number. Invariant: only the keys for sealing and for connections differ between epochs. Ids, names, chunk boundaries and node boundaries are those
//! of the first master key, so that equal content stays equal.

use std::fmt;

use vellum_types::VolumeId;
use zeroize::{Zeroize, Zeroizing};

use crate::domain::RecordDomain;
use crate::keys::{CONNECTION_SEALED, UnsealError, build_associated_data};
use crate::nonce::{self, NONCE_LEN};
use crate::{MasterKey, SEAL_OVERHEAD, aead};

/// Bytes of the number at the start of a nonce. The other 20 are random: 2^64 records of one epoch can be sealed before two
/// nonces are equal with a probability of 2^-32.
const NUMBER_LEN: usize = 4;

/// The number of a master key: 0 for the one that the volume was created with, one more with each rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyEpoch(u32);

impl KeyEpoch {
    /// That of the key with which the volume was created.
    pub const FIRST: Self = Self(0);
    /// The last one that there can be: a rotation each day for 179 years.
    pub const LAST: Self = Self(65_535);

    /// The epoch of this number, if there can be one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        (number <= Self::LAST.0).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The one after it, if there can be one.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        Self::from_number(self.0 + 1)
    }

    /// The one before it; none before the first.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }

    /// The later epoch that sealed bytes name. Of the first epoch, one record in 65,536 seems to name one.
    pub(crate) fn named_by_nonce(sealed: &[u8]) -> Option<Self> {
        let number = sealed.first_chunk::<NUMBER_LEN>()?;
        Self::from_number(u32::from_le_bytes(*number)).filter(|epoch| *epoch != Self::FIRST)
    }

    fn mark_nonce(self, nonce: &mut [u8; NONCE_LEN]) {
        let [n0, n1, n2, n3, ..] = nonce;
        // The number needs no protection of its own: the nonce goes into the subkey, so that another number does not
        // authenticate.
        [*n0, *n1, *n2, *n3] = self.0.to_le_bytes();
    }
}

impl fmt::Display for KeyEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The keys of an epoch after the first.
pub struct EpochKeys {
    volume: VolumeId,
    epoch: KeyEpoch,
    // Boxed, so that moving the struct leaves no copies of keys behind.
    seals: Box<[[u8; 32]; RecordDomain::COUNT]>,
    connection: Zeroizing<[u8; 32]>,
}

impl EpochKeys {
    /// The keys that are derived from the master key of an epoch after the first.
    #[must_use]
    pub fn derive(master: &MasterKey, volume: VolumeId, epoch: KeyEpoch) -> Self {
        let derive = |i: usize| blake3::derive_key(RecordDomain::SEALED_CONTEXTS[i].seal, master.as_bytes());
        let connection = Zeroizing::new(blake3::derive_key(CONNECTION_SEALED, master.as_bytes()));
        Self { volume, epoch, seals: Box::new(std::array::from_fn(derive)), connection }
    }

    /// Their epoch.
    #[must_use]
    pub fn epoch(&self) -> KeyEpoch {
        self.epoch
    }

    /// As [`crate::VolumeKeys::seal_record`], with these keys.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    pub fn seal_record(&self, domain: RecordDomain, aad: &[u8], plaintext: &[u8], out: &mut Vec<u8>) {
        let mut nonce = nonce::generate_nonce();
        self.epoch.mark_nonce(&mut nonce);
        let ad = build_associated_data(self.volume, domain, aad);
        aead::seal_plaintext(self.seal_key(domain), &nonce, &ad, plaintext, out);
    }

    /// As [`crate::VolumeKeys::open_record`], with these keys.
    pub fn open_record(
        &self,
        domain: RecordDomain,
        aad: &[u8],
        sealed: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), UnsealError> {
        if sealed.len() < SEAL_OVERHEAD {
            return Err(UnsealError::Short { found: sealed.len() });
        }
        // With these keys nothing else was ever sealed.
        if KeyEpoch::named_by_nonce(sealed) != Some(self.epoch) {
            return Err(UnsealError::Forged);
        }
        let ad = build_associated_data(self.volume, domain, aad);
        aead::open_sealed(self.seal_key(domain), &ad, sealed, out)
            .map_err(|aead::AuthenticationFailure| UnsealError::Forged)
    }

    pub(crate) fn connection_key(&self) -> &Zeroizing<[u8; 32]> {
        &self.connection
    }

    pub(crate) fn has_equal_keys(&self, other: &Self) -> bool {
        self.epoch == other.epoch && self.seals == other.seals
    }

    fn seal_key(&self, domain: RecordDomain) -> &[u8; 32] {
        &self.seals[domain.table_index()]
    }
}

impl Drop for EpochKeys {
    fn drop(&mut self) {
        self.seals.iter_mut().for_each(Zeroize::zeroize);
    }
}

impl fmt::Debug for EpochKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, epoch, .. } = self;
        f.debug_struct("EpochKeys").field("volume", volume).field("epoch", epoch).finish_non_exhaustive()
    }
}
