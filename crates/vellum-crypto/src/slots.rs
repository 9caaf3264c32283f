//! Key slots: the master key, wrapped by a passphrase, a key file or a recovery code.
//!
//! Invariant: every byte of a slot is authenticated by the wrapping; a slot of another volume, with another label or
//! with other parameters does not unlock. Parameters are checked against floors and ceilings before any memory is
//! taken. Deliberately absent: where slots are stored, prompting, and how often a secret may be tried.

mod codec;
mod kdf;

use std::fmt;

use vellum_types::{DecodeError, ErrorKind, VolumeId};
use zeroize::Zeroizing;

use crate::nonce::{NONCE_LEN, fill_random, generate_nonce};
use crate::{ExchangeSecret, MasterKey, RecoveryCode, aead};

pub use codec::{LABEL_MAX, SLOT_MAX};
pub use kdf::{KdfError, KdfParams};

/// Longest passphrase or key file, bytes: more than any real one, and little enough to hash at once.
pub const SECRET_MAX: usize = 1 << 20;

const SALT_LEN: usize = 32;
const WRAPPED_LEN: usize = NONCE_LEN + MasterKey::LEN + aead::TAG_LEN;

/// The name of a slot: random, the last part of its object's key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeySlotId(pub [u8; KeySlotId::LEN]);

impl KeySlotId {
    /// Length in bytes.
    pub const LEN: usize = 16;
}

impl fmt::Display for KeySlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeySlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotId({self})")
    }
}

/// The kind of secret that opens a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySlotKind {
    /// A passphrase that a person remembers; stretched by Argon2id.
    Passphrase,
    /// The content of a key file; stretched by Argon2id too, since its randomness is unknown.
    KeyFile,
    /// A [`RecoveryCode`].
    Recovery,
}

impl KeySlotKind {
    fn as_byte(self) -> u8 {
        match self {
            Self::Passphrase => 1,
            Self::KeyFile => 2,
            Self::Recovery => 3,
        }
    }

    fn from_byte(byte: u8) -> Result<Self, DecodeError> {
        match byte {
            1 => Ok(Self::Passphrase),
            2 => Ok(Self::KeyFile),
            3 => Ok(Self::Recovery),
            _ => Err(DecodeError::Invalid("slot kind")),
        }
    }
}

impl fmt::Display for KeySlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passphrase => "passphrase",
            Self::KeyFile => "key file",
            Self::Recovery => "recovery code",
        })
    }
}

/// A secret and its kind.
#[derive(Clone, Copy)]
pub enum SlotSecret<'a> {
    /// A passphrase, byte for byte as typed.
    Passphrase(&'a [u8]),
    /// The content of a key file.
    KeyFile(&'a [u8]),
    /// A recovery code.
    Recovery(&'a RecoveryCode),
}

impl SlotSecret<'_> {
    /// The kind of slot that it opens.
    #[must_use]
    pub fn kind(&self) -> KeySlotKind {
        match self {
            Self::Passphrase(_) => KeySlotKind::Passphrase,
            Self::KeyFile(_) => KeySlotKind::KeyFile,
            Self::Recovery(_) => KeySlotKind::Recovery,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Passphrase(bytes) | Self::KeyFile(bytes) => bytes,
            Self::Recovery(code) => code.secret_symbols(),
        }
    }
}

impl fmt::Debug for SlotSecret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.kind())
    }
}

/// Why a slot could not be made or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeySlotError {
    /// The secret has no bytes at all.
    #[error("the {0} is empty")]
    EmptySecret(KeySlotKind),
    /// The secret is longer than [`SECRET_MAX`].
    #[error("the {0} is longer than {SECRET_MAX} bytes")]
    LongSecret(KeySlotKind),
    /// The label is too long or contains control characters.
    #[error("a key slot's label has at most {LABEL_MAX} bytes and no control characters")]
    Label,
    /// The cost parameters are refused, or the derivation failed.
    #[error(transparent)]
    Kdf(#[from] KdfError),
    /// The stored form is not a slot.
    #[error("the key slot cannot be read: {0}")]
    Decode(#[from] DecodeError),
}

impl KeySlotError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::EmptySecret(_) | Self::LongSecret(_) | Self::Label => ErrorKind::Usage,
            Self::Kdf(error) => error.kind(),
            Self::Decode(DecodeError::Version(_)) => ErrorKind::Unsupported,
            Self::Decode(_) => ErrorKind::Corrupt,
        }
    }
}

/// Why a slot could not be unlocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnlockError {
    /// The secret does not open this slot, or the slot was changed: the two cases cannot be distinguished.
    #[error("the {0} does not open this key slot: it is wrong, or the slot was changed")]
    Wrong(KeySlotKind),
    /// The slot requires another kind of secret.
    #[error("this key slot opens with a {wanted}, not with a {given}")]
    OtherKind {
        /// The kind that the slot requires.
        wanted: KeySlotKind,
        /// The kind that was given.
        given: KeySlotKind,
    },
    /// The slot was copied from another volume.
    #[error("this key slot belongs to volume {found}, not to {expected}")]
    OtherVolume {
        /// The volume to be opened.
        expected: VolumeId,
        /// The volume that the slot names.
        found: VolumeId,
    },
    /// The derivation could not be carried out.
    #[error(transparent)]
    Kdf(#[from] KdfError),
}

impl UnlockError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Wrong(_) | Self::OtherKind { .. } => ErrorKind::Denied,
            Self::OtherVolume { .. } => ErrorKind::Corrupt,
            Self::Kdf(error) => error.kind(),
        }
    }
}

/// What a secret gives that opens a slot.
#[derive(Debug)]
pub struct UnlockedSlot {
    /// The volume's first master key.
    pub master: MasterKey,
    /// Unwraps later ones, which were wrapped for the slot's public key.
    pub exchange: ExchangeSecret,
}

/// A slot that was made.
#[derive(Debug)]
pub struct CreatedSlot {
    /// The slot.
    pub slot: KeySlot,
    /// What its secret gives beside the master key.
    pub exchange: ExchangeSecret,
}

/// One wrapped copy of a volume's first master key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySlot {
    id: KeySlotId,
    volume: VolumeId,
    kind: KeySlotKind,
    label: String,
    // None for recovery codes, which are random enough to need no stretching.
    kdf: Option<KdfParams>,
    salt: [u8; SALT_LEN],
    wrapped: [u8; WRAPPED_LEN],
}

impl KeySlot {
    /// Wraps `master` so that `secret` opens it. `params` are unused for recovery codes.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    pub fn create(
        secret: SlotSecret<'_>,
        master: &MasterKey,
        volume: VolumeId,
        label: &str,
        params: KdfParams,
    ) -> Result<CreatedSlot, KeySlotError> {
        let kind = secret.kind();
        match secret.as_bytes().len() {
            0 => return Err(KeySlotError::EmptySecret(kind)),
            len if len > SECRET_MAX => return Err(KeySlotError::LongSecret(kind)),
            _ => codec::check_label(label).map_err(|_| KeySlotError::Label)?,
        }
        let mut id = [0; KeySlotId::LEN];
        let mut salt = [0; SALT_LEN];
        fill_random(&mut id);
        fill_random(&mut salt);
        let kdf = if kind == KeySlotKind::Recovery { None } else { Some(params.check_limits()?) };
        let wrapped = [0; WRAPPED_LEN];
        // The header must be complete before the key is wrapped: it is the associated data. The wrapped key is no
        // part of it.
        let mut slot = Self { id: KeySlotId(id), volume, kind, label: label.to_owned(), kdf, salt, wrapped };
        let key = slot.derive_wrapping_key(secret)?;
        slot.wrap_master_key(&key, master, &generate_nonce());
        Ok(CreatedSlot { slot, exchange: ExchangeSecret::derive_from(&key) })
    }

    fn wrap_master_key(&mut self, key: &[u8; 32], master: &MasterKey, nonce: &[u8; NONCE_LEN]) {
        let mut out = Vec::with_capacity(WRAPPED_LEN);
        aead::seal_plaintext(key, nonce, &self.encode_header(), master.as_bytes(), &mut out);
        self.wrapped.copy_from_slice(&out);
    }

    /// The first master key and the slot's exchange secret, if `secret` is the right one and the slot is of `volume` and
    /// unchanged.
    pub fn unlock_slot(&self, secret: SlotSecret<'_>, volume: VolumeId) -> Result<UnlockedSlot, UnlockError> {
        let given = secret.kind();
        // These two first: they need no derivation, which takes half a second and says only that something is wrong.
        if self.volume != volume {
            return Err(UnlockError::OtherVolume { expected: volume, found: self.volume });
        }
        if self.kind != given {
            return Err(UnlockError::OtherKind { wanted: self.kind, given });
        }
        // An over-long or empty secret made no slot, so there is nothing to derive.
        if !(1..=SECRET_MAX).contains(&secret.as_bytes().len()) {
            return Err(UnlockError::Wrong(given));
        }
        let key = self.derive_wrapping_key(secret)?;
        // Reserved whole: growing would leave copies of the key in freed memory.
        let mut opened = Zeroizing::new(Vec::with_capacity(MasterKey::LEN));
        aead::open_sealed(&key, &self.encode_header(), &self.wrapped, &mut opened)
            .map_err(|aead::AuthenticationFailure| UnlockError::Wrong(given))?;
        let master = MasterKey::from_slice(&opened).ok_or(UnlockError::Wrong(given))?;
        Ok(UnlockedSlot { master, exchange: ExchangeSecret::derive_from(&key) })
    }

    fn derive_wrapping_key(&self, secret: SlotSecret<'_>) -> Result<Zeroizing<[u8; 32]>, KdfError> {
        match self.kdf {
            Some(params) => kdf::stretch_secret(params, self.kind, secret.as_bytes(), &self.salt),
            None => Ok(kdf::derive_wrapping_key(self.kind, secret.as_bytes(), &self.salt)),
        }
    }

    /// The slot's name.
    #[must_use]
    pub fn id(&self) -> KeySlotId {
        self.id
    }

    /// The volume that the slot says it belongs to; proven only by unlocking it.
    #[must_use]
    pub fn volume_id(&self) -> VolumeId {
        self.volume
    }

    /// What opens it.
    #[must_use]
    pub fn kind(&self) -> KeySlotKind {
        self.kind
    }

    /// The label that its owner gave it: no control characters. Readable without a key.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The cost parameters of one attempt; none for recovery codes.
    #[must_use]
    pub fn kdf_params(&self) -> Option<KdfParams> {
        self.kdf
    }
}

impl fmt::Debug for KeySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, volume, kind, label, kdf, .. } = self;
        f.debug_struct("KeySlot")
            .field("id", id)
            .field("volume", volume)
            .field("kind", kind)
            .field("label", label)
            .field("kdf", kdf)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
