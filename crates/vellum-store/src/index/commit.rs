//! Changes of the index: new runs, merges, condemned packs, replacement.
//!
//! Invariant: a run reaches the store after the packs it speaks of, and a run is deleted only after the one that
//! supersedes it is durable; where several replace it, the last one that is put names it. A crash anywhere leaves runs
//! that are superseded or contain the same entries twice: both are harmless.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vellum_types::{BlobId, PackId};

use super::active::{IndexView, KnownIndexObjects};
use super::merge::{self, MergedRecords};
use super::record::{CondemnedPack, IndexRecord};
use super::{BlobIndex, BlobLocation, IndexRun, IndexRunId, RUN_ENTRIES_MAX};
use crate::blob::BlobError;
use crate::error::StoreError;
use crate::object::{ObjectKey, ObjectStore, put_named_object, replace_listed};

/// How long a pack stays condemned after its deletion, seconds (90 days): a client that slept, and wakes to merge
/// runs of before, must not bring its entries back to life.
const CONDEMNED_KEPT: u64 = 90 * 24 * 60 * 60;

/// What a commit adds, and what must be durable before and after it.
#[derive(Default)]
pub(crate) struct IndexAddition<'a> {
    pub(crate) blobs: Vec<(BlobId, BlobLocation)>,
    pub(crate) condemned: Vec<CondemnedPack>,
    pub(crate) before: Vec<(ObjectKey, &'a [u8])>,
    pub(crate) after: Vec<(ObjectKey, &'a [u8])>,
}

/// Why an addition failed.
pub(crate) struct CommitFailure {
    pub(crate) error: BlobError,
    /// Whether an index object may name its packs in spite of that: others may rely on them.
    pub(crate) may_be_named: bool,
}

impl From<CommitFailure> for BlobError {
    fn from(failure: CommitFailure) -> Self {
        failure.error
    }
}

impl BlobIndex {
    /// Makes an addition durable, all of it behind one barrier; returns the bytes of the index object.
    pub(crate) fn commit_addition(&self, addition: IndexAddition<'_>) -> Result<u64, CommitFailure> {
        // Orders the commits of this process. Other processes are not locked out: their runs are listed beside this
        // one.
        let mut known = self.lock_known();
        let mut record = IndexRecord::from_blobs(addition.blobs);
        record.condemned = addition.condemned;
        let mut objects = addition.before;
        // Nothing for the index: what is to be put with it is put all the same.
        if record.is_empty() {
            objects.extend(addition.after);
            if !objects.is_empty() {
                put_named_objects(&*self.objects, &objects)
                    .map_err(|error| CommitFailure { error: error.into(), may_be_named: true })?;
            }
            return Ok(0);
        }
        // Merging with the new record saves an object and a request: it would have been put anyway.
        let record = self.merge_runs_into(record, &mut known);
        let bytes = record.seal(&self.keys);
        let id = IndexRunId::from_object_bytes(&bytes);
        objects.push((id.object_key(), &bytes));
        objects.extend(addition.after);
        if let Err(error) = put_named_objects(&*self.objects, &objects) {
            // It may have been put, and what comes after it have failed.
            let found = self.objects.object_size(&id.object_key());
            // Only the answer that it is not there counts: packs that an index object names must not be deleted.
            let may_be_named = !found.is_err_and(|error| error.is_not_found());
            return Err(CommitFailure { error: error.into(), may_be_named });
        }
        // The object is durable: what fails from here on concerns only its local form.
        self.install_runs(vec![(id, record)], &mut known)
            .map_err(|error| CommitFailure { error, may_be_named: true })?;
        Ok(bytes.len() as u64)
    }

    /// Drops the index's entries of some packs, and packs' condemnation that is old. Rewrites only the runs that
    /// speak of them.
    pub(crate) fn drop_packs(&self, excluding: &HashSet<PackId>) -> Result<(), BlobError> {
        self.rewrite_runs(
            |run| run.packs().any(|(pack, _)| excluding.contains(&pack)),
            |_, place| excluding.contains(&place.pack),
            Vec::new(),
        )
    }

    /// Drops the entries of lost copies of blobs, and enters where these blobs are now. Rewrites only the runs that
    /// speak of the lost copies.
    pub(crate) fn drop_lost_copies(
        &self,
        lost: &HashSet<(BlobId, PackId)>,
        mut found: Vec<(BlobId, BlobLocation)>,
    ) -> Result<(), BlobError> {
        found.sort();
        found.dedup_by_key(|(id, _)| *id);
        self.rewrite_runs(
            |run| lost.iter().any(|(id, pack)| run.find_blob(id).is_some_and(|place| place.pack == *pack)),
            |id, place| lost.contains(&(*id, place.pack)),
            found,
        )
    }

    /// Makes the chosen runs anew without what is to go, and with these blobs, which are sorted: another process may
    /// have merged the run that spoke of them with one that is chosen, and have kept the other copy.
    fn rewrite_runs(
        &self,
        is_chosen: impl Fn(&IndexRun) -> bool,
        goes: impl Fn(&BlobId, &BlobLocation) -> bool,
        with: Vec<(BlobId, BlobLocation)>,
    ) -> Result<(), BlobError> {
        let mut known = self.lock_known();
        // The runs of other processes must be known. An entry that goes from here and stays in one of theirs would
        // come back.
        self.refresh_locked(&mut known)?;
        let active = self.current_view();
        let chosen = active.runs.iter().filter(|run| is_chosen(run));
        let chosen = chosen.map(|run| self.ensure_intact_run(run)).collect::<Result<Vec<_>, _>>()?;
        if chosen.is_empty() {
            // The blobs of `with` are in a run of their own already, so that nothing is lost by this.
            return Ok(());
        }
        // Before they are merged, which keeps one copy of each blob.
        type CommitSource<'a> = Box<dyn Iterator<Item = (BlobId, BlobLocation)> + 'a>;
        let kept = chosen.iter().map(|run| run.iter().filter(|(id, place)| !goes(id, place)));
        let mut sources: Vec<CommitSource<'_>> = vec![Box::new(with.into_iter())];
        sources.extend(kept.map(|source| Box::new(source) as CommitSource<'_>));
        let blobs = MergedRecords::new(sources, |pack: &PackId| active.condemned.contains_key(pack));
        let mut records = split_records(blobs);
        if let Some(last) = records.last_mut() {
            // Only the last record names them. If the process is killed before that one is durable, the old runs are
            // still in force, and the new ones repeat a part of them.
            last.supersedes = collect_superseded(&chosen, &known);
            last.condemned = collect_condemned(&chosen);
        }
        self.put_records(records, &mut known)
    }

    /// Makes `blobs` the whole index, in place of all index objects that are there now;
    /// returns how many there are.
    pub(crate) fn rebuild_index(&self, blobs: Vec<(BlobId, BlobLocation)>) -> Result<usize, BlobError> {
        let mut known = self.lock_known();
        self.refresh_locked(&mut known)?;
        let mut blobs = blobs;
        blobs.sort();
        blobs.dedup_by_key(|(id, _)| *id);
        let count = blobs.len();
        let mut records = split_records(blobs.into_iter());
        if let Some(last) = records.last_mut() {
            // All that are listed, also those that could not be read and are in no view: the new runs take their place.
            last.supersedes = known.listed.iter().copied().collect();
            last.supersedes.sort();
            // The tables of packs do not say which of them are condemned, so this is taken over from the old runs.
            last.condemned = collect_condemned(&self.current_view().runs);
        }
        self.put_records(records, &mut known)?;
        Ok(count)
    }

    fn put_records(&self, records: Vec<IndexRecord>, known: &mut KnownIndexObjects) -> Result<(), BlobError> {
        let mut put = Vec::with_capacity(records.len());
        // Each record is durable before the next is put, and the last one supersedes the old runs.
        for record in records {
            let bytes = record.seal(&self.keys);
            let id = IndexRunId::from_object_bytes(&bytes);
            put_named_objects(&*self.objects, &[(id.object_key(), &bytes)])?;
            put.push((id, record));
        }
        self.install_runs(put, known)
    }

    /// Merges runs into a record that is about to be put, where there are too many. Merging is never urgent: if
    /// it cannot be done now, the record goes as it is.
    fn merge_runs_into(&self, record: IndexRecord, known: &mut KnownIndexObjects) -> IndexRecord {
        let sizes = |active: &IndexView| active.runs.iter().map(|run| run.len()).collect::<Vec<_>>();
        // Decided without a request at first, since most commits merge nothing.
        if merge::choose_runs(&sizes(&self.current_view()), record.entries.len()).is_empty() {
            return record;
        }
        // Another process may have merged them already. If the store cannot be read, the commit goes on without a
        // merge: its packs are uploaded already.
        if self.refresh_locked(known).is_err() {
            return record;
        }
        let active = self.current_view();
        let chosen = merge::choose_runs(&sizes(&active), record.entries.len());
        let runs = chosen.iter().filter_map(|position| active.runs.get(*position));
        let Ok(runs) = runs.map(|run| self.ensure_intact_run(run)).collect::<Result<Vec<_>, _>>() else {
            return record;
        };
        if runs.is_empty() {
            return record;
        }
        let mut merged_record =
            IndexRecord::from_blobs(merge_records(&runs, &active.condemned, Some(&record)));
        merged_record.supersedes = collect_superseded(&runs, known);
        merged_record.condemned = collect_condemned(&runs);
        merged_record.condemned.extend(record.condemned);
        merged_record
    }

    /// Takes runs into use that were just put, and deletes from the store what they supersede.
    fn install_runs(
        &self,
        put: Vec<(IndexRunId, IndexRecord)>,
        known: &mut KnownIndexObjects,
    ) -> Result<(), BlobError> {
        let mut runs = self.current_view().runs.clone();
        let mut superseded = HashSet::new();
        for (id, record) in &put {
            runs.push(self.create_local_run(*id, record)?);
            known.listed.insert(*id);
            superseded.extend(record.supersedes.iter().copied());
        }
        // Readers get the new view before the old runs disappear. A reader that still has the old view keeps its
        // runs open.
        self.publish_view(IndexView::from_runs(runs));
        // Readers over HTTP know of the runs from a listing. If that cannot be changed now, the old runs stay.
        let going: Vec<_> = superseded.iter().map(IndexRunId::object_key).collect();
        let coming: Vec<_> = put.iter().map(|(id, _)| id.object_key()).collect();
        if !going.is_empty() && replace_listed(&*self.objects, &going, &coming).is_err() {
            return Ok(());
        }
        for id in superseded {
            // What cannot be deleted now stays superseded, and is named again by the next merge.
            if self.objects.delete_object(&id.object_key()).is_ok() {
                known.listed.remove(&id);
                self.remove_local_run(&id);
            }
        }
        Ok(())
    }
}

/// Puts objects, those that are named by their bytes also if they are there already.
fn put_named_objects(objects: &dyn ObjectStore, named: &[(ObjectKey, &[u8])]) -> Result<(), StoreError> {
    match objects.put_objects(named) {
        Err(StoreError::Exists { .. }) => {
            named.iter().try_for_each(|(key, bytes)| put_named_object(objects, key, bytes))
        }
        other => other,
    }
}

/// All blobs of some runs and of a record, sorted, each once.
fn merge_records<'a>(
    runs: &'a [Arc<IndexRun>],
    condemned: &'a HashMap<PackId, u64>,
    record: Option<&'a IndexRecord>,
) -> impl Iterator<Item = (BlobId, BlobLocation)> + 'a {
    type Source<'a> = Box<dyn Iterator<Item = (BlobId, BlobLocation)> + 'a>;
    let own = record.map(|record| Box::new(record.blobs()) as Source<'a>);
    let sources = own.into_iter().chain(runs.iter().map(|run| Box::new(run.iter()) as Source<'a>));
    MergedRecords::new(sources.collect::<Vec<_>>(), |pack: &PackId| condemned.contains_key(pack))
}

/// The runs that a merge of `runs` supersedes: these, and what they superseded that may still be there.
fn collect_superseded(runs: &[Arc<IndexRun>], known: &KnownIndexObjects) -> Vec<IndexRunId> {
    let older = runs.iter().flat_map(|run| run.superseded_runs()).filter(|id| known.listed.contains(id));
    let mut all: Vec<_> = runs.iter().map(|run| run.id()).chain(older.copied()).collect();
    all.sort();
    all.dedup();
    all
}

/// The condemned packs of some runs, without those that were condemned long ago.
fn collect_condemned(runs: &[Arc<IndexRun>]) -> Vec<CondemnedPack> {
    let now = current_seconds();
    let all = runs.iter().flat_map(|run| run.condemned_packs());
    // If the clock was set back, the age is zero: a pack stays condemned for too long rather than too briefly.
    let mut kept: Vec<_> = all.filter(|c| now.saturating_sub(c.since) < CONDEMNED_KEPT).copied().collect();
    kept.sort();
    kept.dedup_by_key(|condemned| condemned.pack);
    kept
}

/// Sorted blobs as records of bounded size; one empty record if there are none.
fn split_records(blobs: impl Iterator<Item = (BlobId, BlobLocation)>) -> Vec<IndexRecord> {
    let mut blobs = blobs.peekable();
    let mut records = Vec::new();
    // One record is made even if no blobs are left, since it is what supersedes the old runs.
    while records.is_empty() || blobs.peek().is_some() {
        records.push(IndexRecord::from_blobs(blobs.by_ref().take(RUN_ENTRIES_MAX)));
    }
    records
}

/// Seconds since 1970.
pub(crate) fn current_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
