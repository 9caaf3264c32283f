//! The objects that are small and few: those of keys and devices, refs, sessions, and records of operations.
//!
//! Invariant: no kind needs what another one shows, so that on a service all are checked side by side; what they found
//! is put together in the order of the kinds.

use std::collections::BTreeSet;

use vellum_store::{ObjectKey, StoreError, map_requests};
use vellum_types::SnapshotId;

use super::objects::{list_trees_of_head, record_if_damage, record_outcome};
use super::{FoundDamage, VerifiedTree};
use crate::annotation::decode_annotation;
use crate::config::{self, CONFIG_OBJECT, VolumeConfig};
use crate::error::{Result, VolumeError};
use crate::refs::{RefKind, StoredRef};
use crate::session::{self, current_time};
use crate::settings::decode_settings;
use crate::snapshot_pin::{decode_pin, decode_pin_target};
use crate::store_identity::{STORE_OBJECT, check_store_object};
use crate::volume::Volume;
use crate::{device, key_epochs, keyring, volume};

/// What refs name.
#[derive(Default)]
pub struct NamedByRefs {
    pub snapshots: BTreeSet<SnapshotId>,
    pub unsnapshotted: Vec<VerifiedTree>,
}

/// What the objects of one kind showed.
#[derive(Default)]
struct KindFindings {
    damage: FoundDamage,
    named: NamedByRefs,
}

/// Checks the objects of one kind.
type KindCheck = fn(&Volume, &mut KindFindings) -> Result<()>;

const KEY_CHECKS: [KindCheck; 7] = [
    check_config,
    check_store_identity,
    check_key_slots,
    check_removal_notes,
    check_key_epochs,
    check_slot_keys,
    check_device_records,
];
const REF_CHECKS: [KindCheck; 5] = [check_heads, check_tags, check_settings, check_annotations, check_pins];
const OTHER_CHECKS: [KindCheck; 2] = [check_sessions, check_operations];

/// Checks the objects of keys, the refs, sessions and operations; gives what the refs name.
pub fn check_all(volume: &Volume, damage: &mut FoundDamage) -> Result<NamedByRefs> {
    run_checks(volume, &[&KEY_CHECKS[..], &REF_CHECKS, &OTHER_CHECKS].concat(), damage)
}

/// Checks the objects of keys, and the refs; gives what these name.
pub fn check_keys_and_refs(volume: &Volume, damage: &mut FoundDamage) -> Result<NamedByRefs> {
    run_checks(volume, &[&KEY_CHECKS[..], &REF_CHECKS].concat(), damage)
}

fn run_checks(volume: &Volume, checks: &[KindCheck], damage: &mut FoundDamage) -> Result<NamedByRefs> {
    // First: with the newest keys at hand, what does not open below is damaged, and not merely sealed with a newer
    // key.
    record_outcome(damage, key_epochs::EPOCH_PREFIX, volume.epochs.refresh_keys())?;
    let _listing = volume.refs.share_listing()?;
    let checked = map_requests(&*volume.objects, checks, |check| {
        let mut findings = KindFindings::default();
        check(volume, &mut findings).map(|()| findings)
    });
    let mut named = NamedByRefs::default();
    for findings in checked {
        let findings = findings?;
        damage.add_objects(findings.damage);
        named.snapshots.extend(findings.named.snapshots);
        named.unsnapshotted.extend(findings.named.unsnapshotted);
    }
    Ok(named)
}

impl KindFindings {
    /// Checks each of some objects by itself, several at once on a service.
    fn check_each(
        &mut self,
        volume: &Volume,
        keys: &[ObjectKey],
        check: impl Fn(&ObjectKey) -> Result<()> + Sync,
    ) -> Result<()> {
        let outcomes = map_requests(&*volume.objects, keys, check);
        keys.iter()
            .zip(outcomes)
            .try_for_each(|(key, outcome)| record_outcome(&mut self.damage, key.as_str(), outcome))
    }

    /// Reports objects of keys and devices that are missing although nobody removed them.
    fn add_lost_keys(&mut self, lost: &[ObjectKey]) {
        for key in lost {
            let reason = "it is missing: it was seen here before, and nobody removed it";
            self.damage.add_object(key.as_str(), reason);
        }
    }

    /// Checks all refs of a kind. Returns what was decoded of those that are there and sound.
    fn check_refs<T>(
        &mut self,
        volume: &Volume,
        kind: RefKind,
        decode: impl Fn(&StoredRef) -> Result<T>,
    ) -> Result<Vec<T>> {
        let keys = volume.refs.list_ref_objects(kind)?;
        // An error unless it was written by a holder of the key, and is not older than what was seen.
        let found = volume.refs.read_refs(kind, &keys)?;
        let mut decoded = Vec::new();
        for (key, found) in keys.iter().zip(found) {
            let sound = found.and_then(|found| {
                found.filter(|found| !found.is_removed_ref()).as_ref().map(&decode).transpose()
            });
            decoded.extend(record_if_damage(&mut self.damage, key.as_str(), sound)?.flatten());
        }
        Ok(decoded)
    }
}

fn check_config(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let read = volume.objects.get_object(&volume::config_object_key()?, config::OBJECT_MAX);
    // Other failures are told apart below: a config that is not there is damage, a store that does not answer is none.
    if let Err(StoreError::NotFound { .. }) = read {
        findings.damage.add_object(CONFIG_OBJECT, "it is missing");
        return Ok(());
    }
    let checked = read.map_err(VolumeError::from).and_then(|bytes| {
        let config = VolumeConfig::decode(&bytes).map_err(VolumeError::wrap_decode_error(CONFIG_OBJECT))?;
        config.authenticate(&bytes, &volume.keys)
    });
    record_outcome(&mut findings.damage, CONFIG_OBJECT, checked)
}

fn check_store_identity(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let checked = check_store_object(&*volume.objects, &volume.keys);
    record_outcome(&mut findings.damage, STORE_OBJECT, checked)
}

fn check_key_slots(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let keys = volume.objects.list_keys(keyring::SLOT_PREFIX)?;
    findings.add_lost_keys(&keyring::find_lost_slots(volume, keyring::SLOT_PREFIX, &keys)?);
    findings.check_each(volume, &keys, |key| keyring::check_key_slot(&*volume.objects, key, &volume.keys))
}

fn check_removal_notes(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let keys = volume.objects.list_keys(keyring::REMOVED_PREFIX)?;
    findings.check_each(volume, &keys, |key| keyring::check_removal_note(volume, key))
}

fn check_key_epochs(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let present = volume.objects.list_keys(key_epochs::EPOCH_PREFIX)?;
    for key in volume.epochs.list_expected_objects()?.iter().filter(|key| !present.contains(key)) {
        let reason = "it is missing: later keys were made from it, or it was seen here before";
        findings.damage.add_object(key.as_str(), reason);
    }
    findings.check_each(volume, &present, |key| volume.epochs.check_epoch_object(key))
}

fn check_slot_keys(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let keys = volume.objects.list_keys(key_epochs::SLOT_KEY_PREFIX)?;
    findings.add_lost_keys(&keyring::find_lost_slots(volume, key_epochs::SLOT_KEY_PREFIX, &keys)?);
    findings.check_each(volume, &keys, |key| key_epochs::check_slot_key(volume, key))
}

fn check_device_records(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let keys = device::list_device_records(&*volume.objects)?;
    findings.add_lost_keys(&device::find_lost_records(volume, &keys)?);
    findings.check_each(volume, &keys, |key| device::check_device_record(volume, key))
}

fn check_heads(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let decode = |found: &StoredRef| Ok((volume::decode_worktree_head(found)?, found.name.clone()));
    for (head, name) in findings.check_refs(volume, RefKind::Worktree, decode)? {
        findings.named.snapshots.extend(head.head);
        findings.named.unsnapshotted.extend(list_trees_of_head(&name, &head));
    }
    Ok(())
}

fn check_tags(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let targets = findings.check_refs(volume, RefKind::Tag, volume::decode_tag_target)?;
    findings.named.snapshots.extend(targets);
    Ok(())
}

fn check_settings(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    findings.check_refs(volume, RefKind::Settings, decode_settings).map(drop)
}

fn check_annotations(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    findings.check_refs(volume, RefKind::Annotation, decode_annotation).map(drop)
}

fn check_pins(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let decode = |found: &StoredRef| Ok((decode_pin_target(found)?, decode_pin(found)?));
    for (target, pin) in findings.check_refs(volume, RefKind::Pin, decode)? {
        // A pin that has run out keeps nothing, so that the snapshot may be gone.
        if pin.is_in_force(current_time()) {
            findings.named.snapshots.insert(target);
        }
    }
    Ok(())
}

fn check_sessions(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let keys = volume.objects.list_keys("sessions/")?;
    let check = |key: &ObjectKey| session::check_session_object(&*volume.objects, &volume.keys, key);
    findings.check_each(volume, &keys, check)
}

/// Checks the records of operations, each by itself and then in their chains: a chain ends where one is damaged.
fn check_operations(volume: &Volume, findings: &mut KindFindings) -> Result<()> {
    let keys = volume.list_operation_objects()?;
    // Each by itself as well: behind a damaged record, the walk along a chain reaches none of the older ones.
    findings.check_each(volume, &keys, |key| volume.check_operation_object(key))?;
    // The list is older than the refs that are read now: a chain that began in between is not in it, and so is not taken
    // for records without a ref.
    for problem in volume.verify_listed_operations(&keys)?.problems {
        let reason = format!("{}: {}", problem.subject(), problem.reason);
        findings.damage.add_object(problem.object, reason);
    }
    Ok(())
}
