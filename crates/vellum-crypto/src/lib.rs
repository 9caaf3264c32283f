//! Keyed hashing, sealing and opening, key slots and recovery codes.
//!
//! Invariant: whoever holds sealed bytes without the master key learns their length only, and cannot change them,
//! move them to another domain, volume or name, without `open` noticing. Secrets are wiped when dropped and never
//! printed. Deliberately absent: storage, file formats of other crates, and any notion of where keys are kept.

mod aead;
mod checksum;
mod domain;
mod epoch;
mod exchange;
mod keys;
mod master;
mod nonce;
pub mod recovery;
pub mod slots;

pub use domain::RecordDomain;
pub use epoch::{EpochKeys, KeyEpoch};
pub use exchange::{ExchangePublic, ExchangeSecret, WrappedMaster};
pub use keys::{NewerKeySource, PLAIN_OVERHEAD, SEAL_OVERHEAD, UnsealError, VolumeKeys};
pub use master::MasterKey;
pub use nonce::{check_randomness, fill_random};
pub use recovery::RecoveryCode;
pub use slots::{CreatedSlot, KdfParams, KeySlot, KeySlotKind, SlotSecret, UnlockedSlot};
/// Wipes what it holds when dropped; for passphrases and other secrets on their way here.
pub use zeroize::Zeroizing;
