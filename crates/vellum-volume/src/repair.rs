//! Repair: blobs that were found missing or damaged are stored again from wherever else they are.
//!
//! Invariant: repair only adds. Nothing is stored whose content does not have the id that is looked for, no pack and no
//! snapshot is deleted or changed, and a copy that cannot be read stays where it is: the index forgets it when another one
//! is stored, and condemns its pack when all that it holds is stored elsewhere, so that nobody takes it for a pack that the
//! index lost, and the collector deletes it. Deliberately absent: files of directories, which callers offer.

mod uses;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_store::pack::pack_key;
use vellum_store::{BlobError, BlobStore, StoreError};
use vellum_types::{BlobId, BlobKind, ErrorKind, PackId};

pub use self::uses::{ChunkUse, find_chunk_uses};
use crate::error::{Result, VolumeError};
use crate::session::{SessionClaim, WriteSession};
use crate::verify::Verification;
use crate::volume::Volume;

/// Blobs that are fetched together, a count: 16 MiB of content.
const BLOBS_AT_ONCE: usize = 256;
/// Refused copies that a report names, a count: more would hide the rest.
const REFUSED_MAX: usize = 100;

/// Blobs that one source had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MendedBlobs {
    /// The source, as it is called in messages.
    pub source: String,
    /// How many blobs.
    pub blobs: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// A copy that was looked at and is not what was lost, or a source that could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RefusedCopy {
    /// The source, or the file.
    pub source: String,
    /// What is wrong with it.
    pub problem: String,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// What was stored again, by its source.
    pub mended: Vec<MendedBlobs>,
    /// Copies that were refused; the first ones only.
    pub refused: BTreeSet<RefusedCopy>,
    /// Damaged packs that nothing is read from any more: the collector deletes those that are still there.
    pub unused_packs: u64,
}

impl RepairReport {
    /// Adds what a later repair did.
    pub fn add_report(&mut self, other: Self) {
        for mended in other.mended {
            self.count_mended_blobs(&mended.source, mended.blobs, mended.bytes);
        }
        self.refused.extend(other.refused);
        self.unused_packs += other.unused_packs;
    }

    fn count_mended_blobs(&mut self, source: &str, blobs: u64, bytes: u64) {
        match self.mended.iter_mut().find(|mended| mended.source == source) {
            Some(mended) => {
                mended.blobs += blobs;
                mended.bytes += bytes;
            }
            None => self.mended.push(MendedBlobs { source: source.into(), blobs, bytes }),
        }
    }
}

/// A repair under way: what is still lost, and where found copies go.
pub struct BlobRepair<'a> {
    volume: &'a Volume,
    session: WriteSession,
    lost: BTreeMap<BlobId, BlobKind>,
    damaged_packs: BTreeSet<PackId>,
    /// Those of them that the index knew.
    indexed_packs: BTreeSet<PackId>,
    mended: BTreeSet<BlobId>,
    report: RepairReport,
}

impl<'a> BlobRepair<'a> {
    /// Begins with what a verification found missing or damaged. Packs that the index does not know are taken into it
    /// first, unless somebody collects: they may have some of the blobs.
    pub fn begin(volume: &'a Volume, verification: &Verification) -> Result<Self> {
        let lost = verification.lost_blobs();
        // Found before packs are adopted: a blob that has a place only afterwards may be readable now.
        let unknown: Vec<BlobId> =
            lost.keys().filter(|id| volume.blobs.locate_blob(id).is_none()).copied().collect();
        adopt_unindexed_packs(volume)?;
        // No copy of these counts as stored, so that a writer stores them again.
        volume.blobs.record_lost_blobs(lost.keys().copied());
        let session = volume.begin_write_session()?;
        let mut repair = Self {
            volume,
            session,
            lost,
            damaged_packs: verification.damaged_packs(),
            indexed_packs: BTreeSet::new(),
            mended: BTreeSet::new(),
            report: RepairReport::default(),
        };
        for id in unknown {
            repair.accept_adopted(id);
        }
        repair.find_damaged_packs();
        repair.renew_intact_blobs()?;
        Ok(repair)
    }

    /// The blobs that are still lost.
    #[must_use]
    pub fn lost_blobs(&self) -> &BTreeMap<BlobId, BlobKind> {
        &self.lost
    }

    /// A blob of which the index knew no place before: if it can be read now, nothing need be stored.
    fn accept_adopted(&mut self, id: BlobId) {
        let Some(kind) = self.lost.get(&id).copied() else { return };
        if let Ok(content) = self.volume.blobs.read_blob(kind, &id) {
            self.record_mended("packs that the index did not know", id, content.len() as u64);
        }
    }

    /// Adds the packs that have lost blobs: a verification of one snapshot names the blobs alone.
    fn find_damaged_packs(&mut self) {
        let Self { volume, lost, damaged_packs, indexed_packs, .. } = self;
        volume.blobs.for_each_entry(|id, place| {
            if lost.contains_key(id) {
                damaged_packs.insert(place.pack);
            }
            if damaged_packs.contains(&place.pack) {
                indexed_packs.insert(place.pack);
            }
        });
    }

    /// Stores again what is intact in damaged packs, so that nothing is read from them any more.
    fn renew_intact_blobs(&self) -> Result<()> {
        let blobs = &self.volume.blobs;
        let missing = self.list_missing_packs()?;
        // Of a missing pack, the blobs that have no other place would be asked for in vain, one by one.
        let is_elsewhere = |id: &BlobId| {
            let place = blobs.locate_in_present(id, |pack| !missing.contains(pack));
            blobs.has_source() || place.is_some_and(|place| !missing.contains(&place.pack))
        };
        let mut intact = Vec::new();
        blobs.for_each_entry(|id, place| {
            if self.indexed_packs.contains(&place.pack)
                && !self.lost.contains_key(id)
                && (!missing.contains(&place.pack) || is_elsewhere(id))
            {
                intact.push((place.kind, *id));
            }
        });
        // A writer would take their copies in the damaged packs for stored, and put nothing.
        self.volume.blobs.record_lost_blobs(intact.iter().map(|(_, id)| *id));
        for (kind, id) in intact {
            self.session.renew_if_due()?;
            // What nothing needs may be lost too; a pack that it keeps stays in the report.
            if let Ok(content) = self.volume.blobs.read_blob(kind, &id) {
                self.session.blobs()?.put_blob_with_id(kind, &id, &content)?;
            }
        }
        Ok(())
    }

    /// The damaged packs that are not there.
    fn list_missing_packs(&self) -> Result<BTreeSet<PackId>> {
        let mut missing = BTreeSet::new();
        for pack in &self.indexed_packs {
            match self.volume.objects.object_size(&pack_key(pack)) {
                Ok(_) => {}
                Err(StoreError::NotFound { .. } | StoreError::NotAFile { .. }) => {
                    missing.insert(*pack);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(missing)
    }

    /// Stores content again if it is that of a lost blob. Returns whether it is.
    pub fn offer_content(&mut self, source: &str, id: &BlobId, content: &[u8]) -> Result<bool> {
        let Some(kind) = self.lost.get(id).copied() else { return Ok(false) };
        // A copy may come from anywhere: only its id shows that it is the content that was lost.
        if self.volume.keys.compute_blob_id(kind, content) != *id {
            return Ok(false);
        }
        self.session.blobs()?.put_blob_with_id(kind, id, content)?;
        self.record_mended(source, *id, content.len() as u64);
        Ok(true)
    }

    fn record_mended(&mut self, source: &str, id: BlobId, bytes: u64) {
        self.lost.remove(&id);
        self.mended.insert(id);
        self.report.count_mended_blobs(source, 1, bytes);
    }

    /// Names a copy that is not what was lost, or a source that could not be asked.
    pub fn refuse_copy(&mut self, source: &str, problem: impl Into<String>) {
        if self.report.refused.len() < REFUSED_MAX {
            self.report.refused.insert(RefusedCopy { source: source.into(), problem: problem.into() });
        }
    }

    /// Looks in the copies that this machine has of a remote store, and in the source of the store.
    pub fn search_local_copies(&mut self, meter: &ProgressMeter) -> Result<()> {
        let has_copies = self.volume.objects.is_remote() || self.volume.blobs.has_source();
        if self.lost.is_empty() || !has_copies {
            return Ok(());
        }
        // The verification made this handle of the volume read the store alone.
        match Volume::open(&self.volume.state) {
            Ok(again) => self.search_store("copies on this machine", &again.blobs, meter),
            Err(error) => {
                self.refuse_copy("copies on this machine", error.to_string());
                Ok(())
            }
        }
    }

    /// Looks in another store of the volume.
    pub fn search_store(&mut self, source: &str, blobs: &BlobStore, meter: &ProgressMeter) -> Result<()> {
        if self.lost.is_empty() {
            return Ok(());
        }
        // A source that does not answer must not end the repair: another one may have the content.
        if let Err(error) = blobs.refresh_index() {
            self.refuse_copy(source, error.to_string());
            return Ok(());
        }
        let known = self.lost.iter().filter(|(id, _)| blobs.locate_blob(id).is_some() || blobs.has_source());
        let mut wanted: Vec<(BlobKind, BlobId)> = known.map(|(id, kind)| (*kind, *id)).collect();
        // A fetch is of one kind.
        wanted.sort_by_key(|(kind, id)| (kind.as_byte(), *id));
        let batches =
            wanted.chunk_by(|one, other| one.0 == other.0).flat_map(|kind| kind.chunks(BLOBS_AT_ONCE));
        for batch in batches {
            meter.check_stopped()?;
            self.session.renew_if_due()?;
            let fetched = blobs.fetch_blobs(batch)?;
            for (position, (_, id)) in batch.iter().enumerate() {
                match fetched.open_blob(position) {
                    Ok(content) => drop(self.offer_content(source, id, &content)?),
                    Err(error) if is_answer(&error) => self.refuse_copy(source, error.to_string()),
                    // Nor will it answer for the others.
                    Err(error) => {
                        self.refuse_copy(source, error.to_string());
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Renews the claim on the store if it is due; to be called regularly during long work.
    pub fn renew_if_due(&self) -> Result<()> {
        self.session.renew_if_due()
    }

    /// Makes durable what was found.
    pub fn finish(mut self) -> Result<FinishedRepair> {
        self.session.flush_blobs()?;
        let mut report = self.report;
        let mut unused_packs = self.damaged_packs;
        // The flush has given the index the new copies: what no entry names any more is of no use.
        self.volume.blobs.for_each_entry(|_, place| {
            unused_packs.remove(&place.pack);
        });
        // Only what the index knew: a writer may be about to tell it of another pack, which would be of no use then.
        let replaced: Vec<_> = unused_packs.intersection(&self.indexed_packs).copied().collect();
        if !replaced.is_empty() {
            self.volume.blobs.condemn_packs(&replaced)?;
        }
        self.session.end_session()?;
        report.unused_packs = unused_packs.len() as u64;
        Ok(FinishedRepair { mended: self.mended, unused_packs, report })
    }
}

/// A repair that is durable.
pub struct FinishedRepair {
    /// The blobs that can be read again.
    pub mended: BTreeSet<BlobId>,
    /// Damaged packs that nothing is read from any more.
    pub unused_packs: BTreeSet<PackId>,
    /// What was done.
    pub report: RepairReport,
}

/// Whether a store answered, and what it has is no good.
fn is_answer(error: &BlobError) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

fn adopt_unindexed_packs(volume: &Volume) -> Result<()> {
    // As the collector: another one would take packs that no index knows for abandoned, and delete them.
    match SessionClaim::claim_as_collector(volume) {
        Ok(claim) => {
            volume.blobs.refresh_index()?;
            volume.blobs.adopt_unindexed_packs()?;
            claim.check_not_lost()
        }
        // The packs are looked at by the next repair.
        Err(VolumeError::InUse { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
