//! Pins: what keeps a snapshot from being forgotten, by whom, why and until when.
//!
//! A pin is a ref that is named after its snapshot. One that is taken away stays as a ref that says so, with its time:
//! between two stores, what was said last about a snapshot counts.
//!
//! Invariant: a pin that has a snapshot ends by the clocks of both this machine and the store, so that no clock that is
//! ahead takes it away.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use vellum_host::escape::{format_path, is_invisible_char};
use vellum_types::{DecodeError, FieldReader, FieldWriter, SnapshotId, UnixTime};

use crate::error::{Result, VolumeError};
use crate::lease::read_store_time;
use crate::record::{WHO_MAX, recorded_host_name, recorded_user_name};
use crate::refs::{RefKind, StoredRef};
use crate::session::current_time;
use crate::volume::{RefListing, Volume};

const VERSION: u8 = 1;

/// Longest reason, bytes: some sentences.
pub const PIN_REASON_MAX: usize = 4096;

/// What was said last about the pin of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotPin {
    /// When that was. First, because the later of two pins counts.
    pub set: UnixTime,
    /// Whether the snapshot was pinned, and not the pin taken away.
    pub is_pinned: bool,
    /// The moment until which it is pinned; None: until the pin is taken away.
    pub until: Option<UnixTime>,
    /// The user.
    pub author: String,
    /// The machine.
    pub host: String,
    /// Why; may be empty.
    pub reason: String,
}

/// A pin as users ask for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewSnapshotPin {
    /// Why; may be empty.
    pub reason: String,
    /// The moment until which it is pinned; None: until the pin is taken away.
    pub until: Option<UnixTime>,
}

impl SnapshotPin {
    fn by_current_user(is_pinned: bool, pin: NewSnapshotPin) -> Self {
        let NewSnapshotPin { reason, until } = pin;
        let author = recorded_user_name();
        Self { set: current_time(), is_pinned, until, author, host: recorded_host_name(), reason }
    }

    /// That nothing is pinned, which was never said.
    pub(crate) fn none() -> Self {
        let nobody = String::new();
        Self {
            // Before any pin that was ever set: each of those counts as later.
            set: UnixTime { secs: i64::MIN, nanos: 0 },
            is_pinned: false,
            until: None,
            author: nobody.clone(),
            host: nobody.clone(),
            reason: nobody,
        }
    }

    /// Whether both pin for the same reason and as long, or neither does.
    pub(crate) fn is_same_pin(&self, other: &Self) -> bool {
        let both = self.is_pinned && other.is_pinned;
        self.is_pinned == other.is_pinned
            && (!both || self.until == other.until && self.reason == other.reason)
    }

    /// What another one says, said now.
    pub(crate) fn renew(&self, other: &Self) -> Self {
        let pin = NewSnapshotPin { reason: other.reason.clone(), until: other.until };
        let mut new = Self::by_current_user(other.is_pinned, pin);
        new.follow(self);
        new
    }

    /// Makes it later than another one, also by a clock that is behind that of the machine that said the other.
    fn follow(&mut self, old: &Self) {
        self.set = self.set.max(UnixTime { secs: old.set.secs.saturating_add(1), nanos: 0 });
    }

    /// Whether it pins at this moment.
    #[must_use]
    pub fn is_in_force(&self, now: UnixTime) -> bool {
        self.is_pinned && self.until.is_none_or(|until| until > now)
    }

    /// Who pinned it and why, so that it cannot control a terminal.
    #[must_use]
    pub fn describe(&self) -> String {
        let who = format_path(format!("{}@{}", self.author, self.host));
        if self.reason.is_empty() { who } else { format!("{who}: {}", format_path(&self.reason)) }
    }

    /// The value of the ref.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(VERSION).write_u8(u8::from(self.is_pinned));
        self.set.encode(&mut writer);
        match self.until {
            None => drop(writer.write_u8(0)),
            Some(until) => until.encode(writer.write_u8(1)),
        }
        for text in [&self.author, &self.host, &self.reason] {
            writer.write_bytes(text.as_bytes());
        }
        writer.into_vec()
    }

    /// Reads the value of the ref.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        reader.expect_version(VERSION)?;
        let is_pinned = decode_flag(&mut reader, "pin")?;
        let set = UnixTime::decode(&mut reader)?;
        let until =
            if decode_flag(&mut reader, "end")? { Some(UnixTime::decode(&mut reader)?) } else { None };
        let author = reader.read_string(WHO_MAX)?.to_owned();
        let host = reader.read_string(WHO_MAX)?.to_owned();
        let reason = reader.read_string(PIN_REASON_MAX)?.to_owned();
        reader.expect_end()?;
        Ok(Self { set, is_pinned, until, author, host, reason })
    }
}

fn decode_flag(reader: &mut FieldReader<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match reader.read_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid(what)),
    }
}

/// The snapshots that are pinned, by id.
pub type PinnedSnapshots = BTreeMap<SnapshotId, SnapshotPin>;

impl Volume {
    /// Pins a snapshot. Fails with [`VolumeError::PinnedAlready`] if another pin is in force, which is not shortened or
    /// replaced in silence, and with [`VolumeError::MissingRecord`] if the snapshot was forgotten.
    pub fn pin_snapshot(&self, id: SnapshotId, pin: NewSnapshotPin) -> Result<()> {
        check_reason(&pin.reason)?;
        let now = current_time();
        if pin.until.is_some_and(|until| until <= now) {
            return Err(VolumeError::BadPin("it would end before it begins"));
        }
        let new = SnapshotPin::by_current_user(true, pin);
        self.refs.update_ref(RefKind::Pin, &id.to_string(), |old| {
            match old.map(decode_pin).transpose()? {
                // A command that is repeated succeeds.
                Some(old) if old.is_in_force(now) && (&old.reason, old.until) == (&new.reason, new.until) => {
                    // Written once more as it is: `None` would remove the pin.
                    Ok(Some(old.encode()))
                }
                Some(old) if old.is_in_force(now) => {
                    Err(VolumeError::PinnedAlready { id, pin: old.describe() })
                }
                _ => Ok(Some(new.encode())),
            }
        })?;
        // Whoever forgets snapshots looks for pins before and after: one of both notices the other.
        if self.catalog.has_snapshot(&id)? {
            return Ok(());
        }
        // Removed, unlike in `unpin_snapshot`: no transfer brings a pin to a store that does not have the snapshot.
        self.refs.update_ref(RefKind::Pin, &id.to_string(), |_| Ok(None))?;
        Err(VolumeError::MissingRecord(id))
    }

    /// Takes the pin of a snapshot away; gives what it said. Fails with [`VolumeError::NotPinned`] if there is none.
    pub fn unpin_snapshot(&self, id: SnapshotId) -> Result<SnapshotPin> {
        let removed = RefCell::new(None);
        self.refs.update_ref(RefKind::Pin, &id.to_string(), |old| {
            let old = old.map(decode_pin).transpose()?.filter(|old| old.is_pinned);
            let old = old.ok_or(VolumeError::NotPinned(id))?;
            // The ref stays, and says that nothing is pinned: if it were removed, the next transfer would bring the pin back.
            let mut new = SnapshotPin::by_current_user(false, NewSnapshotPin::default());
            new.follow(&old);
            removed.replace(Some(old));
            Ok(Some(new.encode()))
        })?;
        removed.into_inner().ok_or(VolumeError::NotPinned(id))
    }

    /// Removes a pin that is damaged or lost, by its object. Others stay.
    pub fn remove_damaged_pin(&self, object: &str) -> Result<bool> {
        let (_, damaged) = self.list_readable_pins()?;
        let is_damaged = damaged.iter().any(|damaged| damaged.key.as_str() == object);
        if is_damaged {
            self.refs.remove_damaged_ref(RefKind::Pin, object)?;
        }
        Ok(is_damaged)
    }

    /// What was said about pins, by snapshot, as far as it can be read, and the pins that cannot.
    pub fn list_readable_pins(&self) -> Result<RefListing<SnapshotPin>> {
        self.list_decoded_refs(RefKind::Pin, decode_pin)
    }

    /// What was said about pins, by snapshot.
    pub(crate) fn list_pin_refs(&self) -> Result<Vec<(SnapshotId, SnapshotPin)>> {
        let refs = self.refs.list_refs(RefKind::Pin)?;
        refs.iter().map(|found| Ok((decode_pin_target(found)?, decode_pin(found)?))).collect()
    }

    /// The pins in force. A pin whose end has come by this machine's clock counts until it has come by the store's, too, if
    /// the store reports times.
    pub fn find_pinned_snapshots(&self, now: UnixTime) -> Result<PinnedSnapshots> {
        let mut pins = self.list_pin_refs()?;
        pins.retain(|(_, pin)| pin.is_pinned);
        // Only if a pin has ended by this clock: to learn the time of the store, a session has to be written there.
        if pins.iter().any(|(_, pin)| !pin.is_in_force(now)) {
            let now = read_store_time(self)?.map_or(now, |store| store.min(now));
            pins.retain(|(_, pin)| pin.is_in_force(now));
        }
        Ok(pins.into_iter().collect())
    }

    /// Fails with [`VolumeError::InUse`] if one of these snapshots is pinned.
    pub(crate) fn check_unpinned(&self, ids: &HashSet<&SnapshotId>) -> Result<()> {
        let pinned = self.find_pinned_snapshots(current_time())?;
        match pinned.into_iter().find(|(id, _)| ids.contains(id)) {
            None => Ok(()),
            Some((id, pin)) => {
                let id = self.short_id(&id)?;
                Err(VolumeError::InUse {
                    what: format!("snapshot {id}"),
                    reason: format!(
                        "it is pinned by {}; 'vellum unpin --snapshot {id}' first",
                        pin.describe()
                    ),
                })
            }
        }
    }

    /// Puts snapshots back that were pinned while they were forgotten. Returns those that stay forgotten.
    pub(crate) fn restore_pinned(&self, mut forgotten: Vec<SnapshotId>) -> Result<Vec<SnapshotId>> {
        if forgotten.is_empty() {
            return Ok(forgotten);
        }
        let pinned = self.find_pinned_snapshots(current_time())?;
        for id in forgotten.extract_if(.., |id| pinned.contains_key(id)) {
            self.catalog.restore_forgotten_record(&id)?;
        }
        Ok(forgotten)
    }
}

/// Brings pins of one store to another, for snapshots that the other has: what was said last about each counts. Returns how
/// many changed there.
pub(crate) fn copy_pins(from: &Volume, to: &Volume) -> Result<u64> {
    let pins = from.list_pin_refs()?;
    if pins.is_empty() {
        return Ok(0);
    }
    let there: PinnedSnapshots = to.list_pin_refs()?.into_iter().collect();
    let mut copied = 0;
    for (id, pin) in pins {
        // The pins are compared first: to look for the snapshot takes a request.
        if there.get(&id).is_some_and(|there| *there >= pin) || !to.catalog.has_snapshot(&id)? {
            continue;
        }
        to.refs.update_ref(RefKind::Pin, &id.to_string(), |old| {
            // Compared again with the value that is replaced: it may have changed since it was listed.
            let old = old.map(decode_pin).transpose()?;
            Ok(Some(old.map_or_else(|| pin.clone(), |old| old.max(pin.clone())).encode()))
        })?;
        copied += 1;
    }
    Ok(copied)
}

/// A reason is one line: what others see of it must not look like something else.
fn check_reason(reason: &str) -> Result<()> {
    if reason.len() > PIN_REASON_MAX {
        let what = "the reason of a pin".into();
        return Err(VolumeError::TooLong { what, len: reason.len(), max: PIN_REASON_MAX });
    }
    if reason.chars().any(|c| c.is_control() || is_invisible_char(c)) {
        return Err(VolumeError::BadPin("its reason has control characters, or some that do not show"));
    }
    Ok(())
}

pub(crate) fn decode_pin(found: &StoredRef) -> Result<SnapshotPin> {
    SnapshotPin::decode(&found.value)
        .map_err(VolumeError::wrap_decode_error(format!("the pin of snapshot {}", found.name)))
}

pub(crate) fn decode_pin_target(found: &StoredRef) -> Result<SnapshotId> {
    let wrong = || VolumeError::Decode {
        what: "the name of a pin".into(),
        source: DecodeError::Invalid("id of a snapshot"),
    };
    found.name.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_as_it_was_written_and_in_no_other_form() {
        let moment = |secs| UnixTime { secs, nanos: 5 };
        for until in [None, Some(moment(9))] {
            for is_pinned in [false, true] {
                let text = String::from;
                let pin = SnapshotPin {
                    set: moment(7),
                    is_pinned,
                    until,
                    author: text("ann"),
                    host: text("box"),
                    reason: text("audit"),
                };
                let bytes = pin.encode();
                assert_eq!(SnapshotPin::decode(&bytes), Ok(pin));
                assert!((0..bytes.len()).all(|len| SnapshotPin::decode(&bytes[..len]).is_err()));
                assert!(SnapshotPin::decode(&[&bytes[..], b"x"].concat()).is_err());
                let newer = [&[VERSION + 1], &bytes[1..]].concat();
                assert_eq!(SnapshotPin::decode(&newer), Err(DecodeError::Version(2)));
            }
        }
    }

    #[test]
    fn what_others_wrote_into_a_pin_is_escaped() {
        let pin = SnapshotPin {
            author: "a\x1b[2J".into(),
            host: "b".into(),
            ..SnapshotPin::by_current_user(true, NewSnapshotPin { reason: "x\ny".into(), until: None })
        };
        assert_eq!(pin.describe(), "a\\u{1b}[2J@b: x\\ny");
    }
}
