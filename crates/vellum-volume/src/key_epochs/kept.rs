//! The keys that are kept beside the first master key: those of later epochs, which belong to a store, and the secret of
//! the slot with which the worktree was opened, which gives the next ones.
//!
//! Invariant: a file of another volume is not read. A key is kept before the store depends on it.

use parking_lot::Mutex;
use vellum_crypto::slots::KeySlotId;
use vellum_crypto::{ExchangeSecret, KeyEpoch, MasterKey, Zeroizing};
use vellum_types::VolumeId;

use crate::error::{Result, VolumeError};
use crate::state::StateDir;

/// The master keys of the epochs after the first.
pub(crate) const EPOCHS_FILE: &str = "key-epochs";
/// The master key of an epoch that is about to begin.
const PENDING_FILE: &str = "key-epochs.pending";
/// The secret of a slot.
const SLOT_FILE: &str = "slot-key";
const EPOCHS_PREFIX: &str = "vellum-key-epochs-1:";
const SLOT_PREFIX: &str = "vellum-slot-key-1:";

/// The master key of an epoch.
#[derive(Debug)]
pub(crate) struct EpochMaster {
    pub(crate) epoch: KeyEpoch,
    pub(crate) master: MasterKey,
}

impl EpochMaster {
    pub(super) fn duplicate(&self) -> Self {
        Self { epoch: self.epoch, master: MasterKey::from_bytes(*self.master.as_bytes()) }
    }
}

/// The keys of a process that opened a volume with a secret, and keeps none of them on the disk.
#[derive(Debug)]
pub(crate) struct GivenKeys {
    /// The first master key.
    pub(crate) master: MasterKey,
    /// The slot that the secret opened, and its secret.
    held: HeldSlot,
    /// The master keys of the epochs after the first, as far as the slot gave them.
    epochs: Mutex<Vec<EpochMaster>>,
}

impl GivenKeys {
    pub(crate) fn new(master: MasterKey, held: HeldSlot) -> Self {
        Self { master, held, epochs: Mutex::default() }
    }
}

/// The slot with which a worktree was opened, and its secret.
#[derive(Debug)]
pub struct HeldSlot {
    /// The slot.
    pub slot: KeySlotId,
    /// Its secret.
    pub exchange: ExchangeSecret,
}

impl HeldSlot {
    pub(crate) fn duplicate(&self) -> Self {
        let exchange = ExchangeSecret::from_bytes(&Zeroizing::new(*self.exchange.as_bytes()));
        Self { slot: self.slot, exchange }
    }
}

impl StateDir {
    /// The master keys that are kept of a store, of the epochs after the first, in their order.
    pub(crate) fn read_epoch_masters(&self, volume: VolumeId) -> Result<Vec<EpochMaster>> {
        let kept = self.read_epoch_file(EPOCHS_FILE, volume)?;
        let Some(given) = self.given_keys() else { return Ok(kept) };
        let epochs = given.epochs.lock();
        // What this process was given begins with what was kept here, and goes on.
        Ok(if epochs.is_empty() { kept } else { epochs.iter().map(EpochMaster::duplicate).collect() })
    }

    /// Keeps the master keys of the epochs after the first.
    pub(crate) fn write_epoch_masters(&self, volume: VolumeId, masters: &[EpochMaster]) -> Result<()> {
        if let Some(given) = self.given_keys() {
            // Whoever keeps the first key elsewhere does not want a later one on this disk.
            *given.epochs.lock() = masters.iter().map(EpochMaster::duplicate).collect();
            return Ok(());
        }
        self.write_epoch_file(EPOCHS_FILE, volume, masters)
    }

    /// Forgets them: they are those of another store.
    pub(crate) fn remove_epoch_masters(&self) -> Result<()> {
        self.remove_file(EPOCHS_FILE)
    }

    /// The master key of an epoch that may have begun.
    pub(crate) fn read_pending_master(&self, volume: VolumeId) -> Result<Option<EpochMaster>> {
        Ok(self.read_epoch_file(PENDING_FILE, volume)?.pop())
    }

    /// Keeps a master key before its epoch begins: nothing else may give it.
    pub(crate) fn write_pending_master(&self, volume: VolumeId, pending: EpochMaster) -> Result<()> {
        self.write_epoch_file(PENDING_FILE, volume, &[pending])
    }

    /// The epoch has begun and its key is kept with the others, or it will not begin.
    pub(crate) fn remove_pending_master(&self) -> Result<()> {
        self.remove_file(PENDING_FILE)
    }

    fn read_epoch_file(&self, name: &str, volume: VolumeId) -> Result<Vec<EpochMaster>> {
        let Some(bytes) = self.read_file(name)?.map(Zeroizing::new) else { return Ok(Vec::new()) };
        let malformed = || self.malformed_error(name, "it does not hold the keys of key epochs");
        let text = std::str::from_utf8(&bytes).map_err(|_| malformed())?;
        let mut lines = text.lines();
        let owner = lines.next().and_then(|line| line.strip_prefix(EPOCHS_PREFIX)).ok_or_else(malformed)?;
        // A state directory that was used with another volume has the keys of that one, which open nothing here.
        if owner != volume.to_string() {
            return Ok(Vec::new());
        }
        let mut masters = Vec::new();
        for line in lines {
            let parse = || {
                let (number, hex) = line.split_once(' ')?;
                let epoch = KeyEpoch::from_number(number.parse().ok()?)?;
                Some(EpochMaster { epoch, master: MasterKey::from_bytes(*parse_key(hex)?) })
            };
            masters.push(parse().ok_or_else(malformed)?);
        }
        Ok(masters)
    }

    fn write_epoch_file(&self, name: &str, volume: VolumeId, masters: &[EpochMaster]) -> Result<()> {
        // Reserved whole: growing would leave copies of the keys in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(64 + 80 * masters.len()));
        text.push_str(&format!("{EPOCHS_PREFIX}{volume}\n"));
        for EpochMaster { epoch, master } in masters {
            text.push_str(&format!("{epoch} "));
            push_key(&mut text, master.as_bytes());
        }
        self.write_file(name, text.as_bytes())
    }

    /// The slot with which the worktree was opened, if that is known.
    pub fn read_held_slot(&self) -> Result<Option<HeldSlot>> {
        if let Some(given) = self.given_keys() {
            return Ok(Some(given.held.duplicate()));
        }
        let Some(bytes) = self.read_file(SLOT_FILE)?.map(Zeroizing::new) else { return Ok(None) };
        let parse = || {
            let text = std::str::from_utf8(&bytes).ok()?;
            let (slot, secret) = text.trim_end().strip_prefix(SLOT_PREFIX)?.split_once(' ')?;
            // The id of a slot has as many bytes as that of a volume, and is written in the same digits.
            let slot: VolumeId = slot.parse().ok()?;
            let exchange = ExchangeSecret::from_bytes(&parse_key(secret)?);
            Some(HeldSlot { slot: KeySlotId(*slot.as_bytes()), exchange })
        };
        parse()
            .map(Some)
            .ok_or_else(|| self.malformed_error(SLOT_FILE, "it does not hold the key of a key slot"))
    }

    /// Keeps the secret of a slot, readable by the owner only: it gives the keys of the epochs to come.
    pub fn write_held_slot(&self, slot: KeySlotId, exchange: &ExchangeSecret) -> Result<()> {
        // Reserved whole, too: a string that grows leaves its first copy, with the key, in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(160));
        text.push_str(&format!("{SLOT_PREFIX}{slot} "));
        push_key(&mut text, exchange.as_bytes());
        self.write_file(SLOT_FILE, text.as_bytes())
    }

    fn malformed_error(&self, name: &str, reason: &str) -> VolumeError {
        VolumeError::wrap_local_error(self.join(name))(std::io::Error::other(reason))
    }
}

/// Appends a key in hexadecimal and a newline.
fn push_key(text: &mut String, key: &[u8; 32]) {
    for byte in key {
        // Digit by digit into the reserved string: what `format!` makes would not be wiped.
        text.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
        text.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
    }
    text.push('\n');
}

fn parse_key(hex: &str) -> Option<Zeroizing<[u8; 32]>> {
    // The id of a blob has as many bytes, and is written in the same digits.
    let bytes: vellum_types::BlobId = hex.trim_end().parse().ok()?;
    Some(Zeroizing::new(bytes.0))
}
