//! A part of a store: some packs, and the records and trees that belong to them.
//!
//! A sample looks for what rotted: its packs, and a share of the records. What is new since the last time is also looked at as
//! `verify --all` does it: from each new tree down, whatever a new node names is there. A node is new if its pack is; all that
//! an older node names was looked at when that one was new.

use std::collections::{BTreeSet, HashSet};

use vellum_host::ProgressMeter;
use vellum_store::map_requests;
use vellum_types::{PackId, SnapshotId};

use super::objects::{
    CheckedPacks, PackChoice, RECORDS_AT_ONCE, accept_record, check_needed_records, check_packs,
};
use super::small_objects::{self, NamedByRefs};
use super::trees::{self, CheckedContent, WalkExtent};
use super::verified_packs::PackPart;
use super::{FoundDamage, VerifiedTree};
use crate::error::Result;
use crate::volume::Volume;

/// Checks the objects of keys, the refs, whether all packs and records are there, and a part of these.
pub fn check_part(
    volume: &Volume,
    part: PackPart,
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<CheckedPacks> {
    // Refs before records, as a writer puts its record first.
    let NamedByRefs { snapshots: mut needed, unsnapshotted } =
        small_objects::check_keys_and_refs(volume, damage)?;
    let checked = check_packs(volume, &PackChoice { metadata_only: false, part: Some(part) }, damage, meter)?;
    let listed = volume.catalog.list_ids()?;
    let mut met: BTreeSet<_> = listed.iter().copied().collect();
    met.extend(volume.catalog.list_forgotten_ids()?);
    needed.extend(volume.catalog.known_ids());
    check_needed_records(volume, &needed, &met, damage);
    match part {
        PackPart::Sample(_) => {
            // As many runs as there are such parts in the whole look at all. Where this cannot be noted, the next run looks
            // at the same ones.
            let is_chosen =
                |id: &&SnapshotId| checked.slice.is_some_and(|slice| slice.contains(id.as_bytes()));
            let chosen: Vec<_> = listed.iter().filter(is_chosen).copied().collect();
            check_chosen_records(volume, &chosen, damage, meter)?;
        }
        PackPart::SinceLast => {
            // After the packs: the trees of snapshots that others made meanwhile are new the next time, too.
            volume.blobs.refresh_index()?;
            let chosen = select_new_records(volume, &checked.packs)?;
            let mut trees = check_chosen_records(volume, &chosen, damage, meter)?;
            trees.extend(unsnapshotted.into_iter().filter(|tree| is_new_tree(volume, tree, &checked.packs)));
            let extent = WalkExtent { content: CheckedContent::Nothing, packs: Some(&checked.packs) };
            trees::walk_trees(volume, &trees, extent, damage, meter)?;
        }
    }
    Ok(checked)
}

/// The snapshots whose trees are new.
fn select_new_records(volume: &Volume, packs: &HashSet<PackId>) -> Result<Vec<SnapshotId>> {
    let sound = volume.catalog.read_all_records()?.sound;
    let trees = sound.iter().map(|(id, record)| (id, VerifiedTree::of_snapshot(id, record)));
    Ok(trees.filter(|(_, tree)| is_new_tree(volume, tree, packs)).map(|(id, _)| *id).collect())
}

/// Whether the top of a tree is in one of these packs, or nowhere.
fn is_new_tree(volume: &Volume, tree: &VerifiedTree, packs: &HashSet<PackId>) -> bool {
    volume.blobs.locate_blob(&tree.root.0).is_none_or(|place| packs.contains(&place.pack))
}

/// Reads records from the store; returns the trees of those that are sound.
fn check_chosen_records(
    volume: &Volume,
    chosen: &[SnapshotId],
    damage: &mut FoundDamage,
    meter: &ProgressMeter,
) -> Result<Vec<VerifiedTree>> {
    let mut sound = Vec::new();
    for ids in chosen.chunks(RECORDS_AT_ONCE) {
        meter.check_stopped()?;
        let fetched = map_requests(&*volume.objects, ids, |id| volume.catalog.fetch_record(id));
        for (id, fetched) in ids.iter().zip(fetched) {
            let record = accept_record(id, fetched, damage)?;
            sound.extend(record.map(|record| VerifiedTree::of_snapshot(id, &record)));
        }
    }
    Ok(sound)
}
