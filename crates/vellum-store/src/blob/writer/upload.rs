//! Puts full packs in the background, so that waiting for the disk or the network overlaps with computing.
//!
//! Invariant: a pack is readable at every moment of its way: here while under way, in the store afterwards. Threads
//! are started by the first full pack, so that small commits cost none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use vellum_types::PackId;

use crate::object::{RequestPurpose, put_named_object};

use super::{BlobError, BlobLocation, BlobWriterShared, IndexAddition, PackBuilder, pack_key, select_packs};

/// Blobs uploaded that make the writer put an index object midway, a count: bounds its memory to some 60 MB, and
/// what an interrupted import must repeat.
const INDEX_AFTER: usize = 256 << 10;
/// Threads for a store where waiting dominates, a count: a pack of 16 MiB each is in memory.
const THREADS_REMOTE: usize = 3;

pub(super) struct UploadJob {
    pub(super) number: u32,
    pub(super) builder: PackBuilder,
}

/// Packs on their way, and packs that arrived.
#[derive(Default)]
struct UploadTracker {
    under_way: HashMap<u32, Arc<Vec<u8>>>,
    arrived: HashMap<u32, PackId>,
}

struct UploadLane {
    sender: SyncSender<UploadJob>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) struct UploadQueue {
    shared: Arc<BlobWriterShared>,
    track: Arc<Mutex<UploadTracker>>,
    numbers: AtomicU32,
    lane: OnceLock<UploadLane>,
}

impl UploadQueue {
    pub(super) fn new(shared: Arc<BlobWriterShared>) -> Self {
        Self { shared, track: Arc::default(), numbers: AtomicU32::new(0), lane: OnceLock::new() }
    }

    /// A number for a new pack, unique in this writer.
    pub(super) fn next_pack_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Hands over a full pack; waits while two are under way.
    pub(super) fn submit_pack(&self, job: UploadJob) -> Result<(), BlobError> {
        let lane = self.lane.get_or_init(|| self.start_lane());
        // The threads end only when the lane does, unless one panicked.
        lane.sender.send(job).map_err(|_| self.shared.record_failure(BlobError::Unsettled))
    }

    fn start_lane(&self) -> UploadLane {
        // A rendezvous: what is handed over is being uploaded, so the number of threads bounds the memory.
        let (sender, receiver) = sync_channel(0);
        let receiver = Arc::new(Mutex::new(receiver));
        let count = if self.shared.store.inner.objects.parallel_get_count() > 1 { THREADS_REMOTE } else { 1 };
        // A purpose belongs to a thread, so that the new ones have to be given it.
        let purpose = RequestPurpose::current();
        let threads = (0..count).map(|_| {
            let shared = self.shared.clone();
            let track = self.track.clone();
            let receiver = receiver.clone();
            std::thread::spawn(move || {
                purpose.set_for_thread();
                run_upload_worker(&shared, &track, &receiver);
            })
        });
        UploadLane { sender, threads: threads.collect() }
    }

    pub(super) fn find_pending_pack(&self, number: u32) -> Option<Arc<Vec<u8>>> {
        lock(&self.track).under_way.get(&number).cloned()
    }

    pub(super) fn find_uploaded_pack(&self, number: u32) -> Option<PackId> {
        lock(&self.track).arrived.get(&number).copied()
    }

    /// Waits for all packs that were handed over.
    pub(super) fn join_uploads(&mut self) {
        let Some(UploadLane { sender, threads }) = self.lane.take() else { return };
        drop(sender);
        for thread in threads {
            if thread.join().is_err() {
                self.shared.record_failure(BlobError::Unsettled);
            }
        }
    }
}

/// A writer that is given up leaves no thread behind that still puts.
impl Drop for UploadQueue {
    fn drop(&mut self) {
        self.join_uploads();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}

fn run_upload_worker(
    shared: &BlobWriterShared,
    track: &Mutex<UploadTracker>,
    receiver: &Mutex<Receiver<UploadJob>>,
) {
    loop {
        // Locked while waiting: one thread waits for a job, the others wait for the lock.
        let Ok(job) = lock(receiver).recv() else { return };
        // After a failure, jobs are taken and dropped, so that no sender waits for ever.
        if shared.check_failure().is_err() {
            continue;
        }
        if let Err(error) = upload_pack(shared, track, job) {
            shared.record_failure(error);
        }
    }
}

fn upload_pack(
    shared: &BlobWriterShared,
    track: &Mutex<UploadTracker>,
    job: UploadJob,
) -> Result<(), BlobError> {
    let inner = &shared.store.inner;
    let built = job.builder.build_pack(&inner.keys);
    let bytes = Arc::new(built.bytes);
    // Until here, a reader finds the pack nowhere, and looks again.
    lock(track).under_way.insert(job.number, bytes.clone());
    put_named_object(&*inner.objects, &pack_key(&built.id), &bytes)?;
    // Under one lock, so that readers find the pack at one of the two places.
    let mut tracked = lock(track);
    tracked.arrived.insert(job.number, built.id);
    tracked.under_way.remove(&job.number);
    drop(tracked);
    shared.stats.count_pack(bytes.len());
    let mut uploaded = lock(&shared.uploaded);
    uploaded
        .extend(built.entries.iter().map(|entry| (entry.id, BlobLocation::from_pack_entry(built.id, entry))));
    if uploaded.len() < INDEX_AFTER {
        return Ok(());
    }
    // Taken out before the commit, so that no other thread commits the same blobs.
    let blobs = std::mem::take(&mut *uploaded);
    drop(uploaded);
    let ids: Vec<_> = blobs.iter().map(|(id, _)| *id).collect();
    let packs = select_packs(&blobs);
    let index_bytes = inner
        .index
        .commit_addition(IndexAddition { blobs, ..IndexAddition::default() })
        .map_err(|failure| shared.record_failed_commit(failure, packs))?;
    shared.stats.count_index(index_bytes);
    // The index knows them now.
    ids.iter().for_each(|id| shared.pending.remove_blob(id));
    Ok(())
}
