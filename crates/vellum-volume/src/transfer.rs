//! Snapshots that go from one store of a volume to another, with all that they need.
//!
//! Invariant: a record is stored after everything that it names, parents before children, so that whatever the target
//! lists is whole there. What arrived counts for the next attempt. Deliberately absent: refs; push and pull move them.

mod missing;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;
use vellum_store::{BlobLocation, BlobStore, BlobWriter, HeldBlob, PackCopyOutcome, RequestPurpose};
use vellum_types::{BlobId, ErrorKind, PackId, SnapshotId};

use self::missing::{BaseTree, MissingBlobs};
use crate::error::{Result, VolumeError};
use crate::gc::find_live_roots;
use crate::history::HistoryEntry;
use crate::record::SnapshotRecord;
use crate::session::SessionClaim;
use crate::volume::Volume;

/// Says in the state of the target that a transfer began and did not end.
const UNFINISHED_FILE: &str = "transfer-unfinished";
/// Packs that are read at once from a store where waiting dominates, a count: each is in memory, beside those that are
/// under way to the target.
const PACKS_AT_ONCE: usize = 4;
/// Part of a pack that must be wanted for all of it to be copied, percent: less would store too much that nobody needs.
const WHOLE_PERCENT: u64 = 90;

/// Which snapshots the target lacks.
#[derive(Debug, Default)]
pub struct TransferPlan {
    /// Snapshots to store, parents before children.
    pub snapshots: Vec<HistoryEntry>,
    /// Forgotten ancestors: their records go along, so that the history can be followed; their trees do not.
    pub forgotten: Vec<HistoryEntry>,
    /// Snapshots that the target has.
    there: HashSet<SnapshotId>,
}

/// What a transfer did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferReport {
    /// Snapshots whose records were stored.
    pub snapshots: u64,
    /// Blobs that the target lacked.
    pub blobs: u64,
    /// Packs put into the target.
    pub packs: u64,
    /// Bytes put into the target.
    pub bytes: u64,
}

impl TransferReport {
    /// Adds the content that another transfer stored.
    pub(crate) fn add_content(&mut self, other: Self) {
        self.blobs += other.blobs;
        self.packs += other.packs;
        self.bytes += other.bytes;
    }
}

impl TransferPlan {
    /// Finds what `to` lacks of some snapshots and their ancestors. A snapshot that was forgotten there is sent only if
    /// it is named.
    pub fn build(from: &Volume, to: &Volume, heads: &[SnapshotId]) -> Result<Self> {
        let mut plan = Self { there: to.catalog.list_ids()?.into_iter().collect(), ..Self::default() };
        let forgotten_there: HashSet<_> = to.catalog.list_forgotten_ids()?.into_iter().collect();
        let live = from.catalog.last_listed_ids()?;
        let mut met: HashSet<SnapshotId> = HashSet::new();
        let mut waiting: Vec<_> = heads.to_vec();
        while let Some(id) = waiting.pop() {
            let is_known = || forgotten_there.contains(&id) && !heads.contains(&id);
            if plan.there.contains(&id) || is_known() || !met.insert(id) {
                continue;
            }
            let record = match from.catalog.get_record(&id) {
                Ok(record) => record,
                // Where even the record is gone, the line ends.
                Err(VolumeError::MissingRecord(_)) if live.binary_search(&id).is_err() => continue,
                Err(error) => return Err(error),
            };
            waiting.extend(record.parents.iter().copied());
            let entry = HistoryEntry { id, record };
            if live.binary_search(&id).is_ok() {
                plan.snapshots.push(entry);
            } else if !forgotten_there.contains(&id) {
                plan.forgotten.push(entry);
            }
        }
        // A snapshot comes after its parents in this order, whatever the clocks said.
        plan.snapshots.sort_unstable();
        plan.forgotten.sort_unstable();
        Ok(plan)
    }

    /// What a transfer would report of snapshots; the blobs are not counted.
    #[must_use]
    pub fn preview(&self) -> TransferReport {
        TransferReport { snapshots: self.snapshots.len() as u64, ..TransferReport::default() }
    }

    /// Whether the target has everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.snapshots.is_empty() && self.forgotten.is_empty()
    }

    /// The nearest ancestors of a snapshot that have a tree at hand: what the target has, or will have before this one.
    fn find_bases(&self, from: &Volume, record: &SnapshotRecord) -> Vec<HistoryEntry> {
        let mut bases = Vec::new();
        let mut met = HashSet::new();
        let mut waiting = record.parents.clone();
        while let Some(id) = waiting.pop() {
            if !met.insert(id) {
                continue;
            }
            // Bases only spare work: without this one, more nodes are compared.
            let Ok(record) = from.catalog.get_record(&id) else { continue };
            let entry = HistoryEntry { id, record };
            if self.there.contains(&id) || self.snapshots.binary_search(&entry).is_ok() {
                bases.push(entry);
            } else {
                waiting.extend(entry.record.parents.iter().copied());
            }
        }
        bases
    }
}

/// Stores in `to` what it lacks of some snapshots and their ancestors. The sessions stand until `finish` has run, which
/// moves refs.
pub fn transfer_snapshots<T>(
    from: &Volume,
    to: &Volume,
    heads: &[SnapshotId],
    meter: &ProgressMeter,
    finish: impl FnOnce() -> Result<T>,
) -> Result<(TransferReport, T)> {
    if heads.is_empty() {
        return Ok((TransferReport::default(), finish()?));
    }
    // A collection of the source must not take what is being read. A source that can only be read has no such guard:
    // then what vanishes meanwhile is an error.
    let _reading = match SessionClaim::claim_as_writer(from) {
        Ok(claim) => Some(claim),
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => None,
        Err(error) => return Err(error),
    };
    from.blobs.refresh_index()?;
    adopt_unfinished_transfer(to)?;
    let mut session = to.begin_write_session()?;
    // Not before: a snapshot that is listed while the session stands keeps its tree until that ends.
    let plan = TransferPlan::build(from, to, heads)?;
    if plan.is_empty() {
        let finished = finish()?;
        session.end_session()?;
        return Ok((TransferReport::default(), finished));
    }
    // Before the first pack: if this process is killed, the next attempt takes over the packs that no index knows
    // yet.
    to.state.write_file(UNFINISHED_FILE, b"")?;
    let missing = find_missing_blobs(from, to, &plan, session.blobs()?, meter)?;
    let blobs = missing.len() as u64;
    copy_missing_blobs(&from.blobs, &missing, session.blobs()?, meter, &|| session.renew_if_due())?;
    // Blobs before records: whatever the target lists must be whole at any moment.
    let stats = session.flush_blobs()?;
    store_records(to, &plan, meter)?;
    let finished = finish()?;
    session.end_session()?;
    // Last: if this is not reached, the next attempt looks once for packs that no index knows, and finds none.
    to.state.remove_file(UNFINISHED_FILE)?;
    let snapshots = plan.snapshots.len() as u64;
    let report = TransferReport { snapshots, blobs, packs: stats.packs, bytes: stats.bytes_stored };
    Ok((report, finished))
}

/// Stores in `to` the records of some snapshots and their ancestors, and none of their content: `from` is the source of its
/// store.
pub(crate) fn transfer_records<T>(
    from: &Volume,
    to: &Volume,
    heads: &[SnapshotId],
    meter: &ProgressMeter,
    finish: impl FnOnce() -> Result<T>,
) -> Result<(TransferReport, T)> {
    if heads.is_empty() {
        return Ok((TransferReport::default(), finish()?));
    }
    // Snapshots that are listed while the session stands keep what they need that is here.
    let session = to.begin_write_session()?;
    let plan = TransferPlan::build(from, to, heads)?;
    store_records(to, &plan, meter)?;
    let finished = finish()?;
    session.end_session()?;
    let snapshots = plan.snapshots.len() as u64;
    Ok((TransferReport { snapshots, ..TransferReport::default() }, finished))
}

/// Copies into the store of a volume all content of its snapshots and worktrees that only its source has.
pub(crate) fn copy_source_content(
    volume: &Volume,
    source: &BlobStore,
    meter: &ProgressMeter,
) -> Result<TransferReport> {
    adopt_unfinished_transfer(volume)?;
    let mut session = volume.begin_write_session()?;
    // Before the first pack, as in `transfer_snapshots`.
    volume.state.write_file(UNFINISHED_FILE, b"")?;
    let mut missing = MissingBlobs::default();
    // After the session has begun: what is listed now stays until that ends.
    for root in find_live_roots(volume, &BTreeSet::new())?.all_roots() {
        missing.add_tree(volume, root, Vec::new(), session.blobs()?, meter)?;
    }
    copy_missing_blobs(source, &missing, session.blobs()?, meter, &|| session.renew_if_due())?;
    let stats = session.flush_blobs()?;
    session.end_session()?;
    volume.state.remove_file(UNFINISHED_FILE)?;
    let blobs = missing.len() as u64;
    Ok(TransferReport { snapshots: 0, blobs, packs: stats.packs, bytes: stats.bytes_stored })
}

/// Parents before children.
fn store_records(to: &Volume, plan: &TransferPlan, meter: &ProgressMeter) -> Result<()> {
    // They may be ancestors of the others, and the history of a listed snapshot must be readable at any moment.
    for entry in &plan.forgotten {
        to.catalog.store_forgotten_record(&entry.record)?;
    }
    for entry in &plan.snapshots {
        meter.check_stopped()?;
        to.catalog.store_record(&entry.record)?;
    }
    Ok(())
}

/// The snapshots of `from` that were not forgotten in `to`.
pub(crate) fn find_unforgotten(from: &Volume, to: &Volume) -> Result<Vec<SnapshotId>> {
    let forgotten = to.catalog.list_forgotten_ids()?;
    let ids = from.catalog.last_listed_ids()?;
    Ok(ids.iter().filter(|id| forgotten.binary_search(id).is_err()).copied().collect())
}

/// Takes over the packs that an interrupted transfer left in the target. If somebody collects there, they are sent again.
fn adopt_unfinished_transfer(to: &Volume) -> Result<()> {
    if to.state.read_file(UNFINISHED_FILE)?.is_none() {
        return Ok(());
    }
    // As the collector: another one would take packs that no index knows for abandoned, and delete them.
    match SessionClaim::claim_as_collector(to) {
        Ok(claim) => {
            to.blobs.refresh_index()?;
            let packs = to.blobs.adopt_unindexed_packs()?;
            tracing::info!(packs, "packs of an interrupted transfer are taken over");
            // If the claim was lost, another collector may have deleted what was just taken over.
            claim.check_not_lost()
        }
        Err(VolumeError::InUse { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn find_missing_blobs(
    from: &Volume,
    to: &Volume,
    plan: &TransferPlan,
    writer: &BlobWriter,
    meter: &ProgressMeter,
) -> Result<MissingBlobs> {
    let mut missing = MissingBlobs::default();
    for entry in &plan.snapshots {
        let bases = plan.find_bases(from, &entry.record);
        let bases = bases.iter().map(|base| {
            // What both have is read where it costs less.
            let reads_target = plan.there.contains(&base.id) && !to.objects.is_remote();
            BaseTree { volume: if reads_target { to } else { from }, root: base.record.root }
        });
        missing.add_tree(from, entry.record.root, bases.collect(), writer, meter)?;
    }
    Ok(missing)
}

/// What is to be copied of one pack.
struct PackCopy<'a> {
    /// The store that has it: the one that is copied from, or its source.
    holder: &'a BlobStore,
    pack: PackId,
    blobs: Vec<(BlobId, BlobLocation)>,
    /// Sealed bytes of these blobs.
    wanted: u64,
    is_whole: bool,
}

fn copy_missing_blobs(
    from: &BlobStore,
    missing: &MissingBlobs,
    writer: &BlobWriter,
    meter: &ProgressMeter,
    renew: &(dyn Fn() -> Result<()> + Sync),
) -> Result<()> {
    let copies = plan_pack_copies(from, missing)?;
    meter.begin_phase(missing.len() as u64, copies.iter().map(|copy| copy.wanted).sum());
    let count = from.parallel_get_count().clamp(1, PACKS_AT_ONCE);
    let queue = Mutex::new(copies.into_iter());
    let work = || -> Result<()> {
        loop {
            let Some(copy) = queue.lock().next() else { return Ok(()) };
            meter.check_stopped()?;
            renew()?;
            copy_pack(&copy, writer)?;
            meter.add_progress(copy.blobs.len() as u64, copy.wanted);
        }
    };
    // Requests are counted by the purpose of their thread, which new threads do not inherit.
    let purpose = RequestPurpose::current();
    std::thread::scope(|scope| {
        let copy = || {
            purpose.set_for_thread();
            work()
        };
        let threads: Vec<_> = (1..count).map(|_| scope.spawn(copy)).collect();
        // This thread works, too: where one request at a time is best, no other is started.
        let mut outcome = work();
        for thread in threads {
            // A thread that panicked has printed why. What it had to copy is missing.
            let ended = thread.join().unwrap_or(Err(VolumeError::Interrupted));
            outcome = outcome.and(ended);
        }
        outcome
    })
}

fn copy_pack(copy: &PackCopy<'_>, writer: &BlobWriter) -> Result<()> {
    if copy.is_whole {
        match copy.holder.copy_pack_to(writer, &copy.pack) {
            Ok(PackCopyOutcome::Copied) => return Ok(()),
            // Its blobs are sealed anew, with the key of the target.
            Ok(PackCopyOutcome::OtherKeys) => {}
            // What is wanted of it may be sound.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(%error, "a damaged pack is copied blob by blob");
            }
            Err(error) => return Err(error.into()),
        }
    }
    copy.holder.copy_blobs_to(writer, &copy.pack, &copy.blobs)?;
    Ok(())
}

/// Where the missing blobs are, by pack.
fn plan_pack_copies<'a>(from: &'a BlobStore, missing: &MissingBlobs) -> Result<Vec<PackCopy<'a>>> {
    let mut copies: BTreeMap<PackId, PackCopy<'a>> = BTreeMap::new();
    for (kind, id) in missing.iter() {
        let HeldBlob { holder, place } = from.require_holder(kind, &id)?;
        // The index may be wrong: a blob of another kind is not the one that the tree names.
        if place.kind != kind {
            return Err(vellum_store::BlobError::NotFound { kind, id }.into());
        }
        // No name of a pack is used twice, so that each has one holder.
        let new = || PackCopy { holder, pack: place.pack, blobs: Vec::new(), wanted: 0, is_whole: false };
        let copy = copies.entry(place.pack).or_insert_with(new);
        copy.wanted += u64::from(place.len);
        copy.blobs.push((id, place));
    }
    let packs: HashSet<PackId> = copies.keys().copied().collect();
    let mut held: HashMap<PackId, u64> = from.measure_packs(&packs);
    // If all is here, the source is not opened for this.
    if copies.values().any(|copy| !std::ptr::eq(copy.holder, from))
        && let Some(source) = from.open_source()?
    {
        held.extend(source.measure_packs(&packs));
    }
    let mut copies: Vec<_> = copies.into_values().collect();
    for copy in &mut copies {
        let all = held.get(&copy.pack).copied().unwrap_or(copy.wanted);
        copy.is_whole = copy.wanted * 100 >= all * WHOLE_PERCENT;
    }
    Ok(copies)
}
