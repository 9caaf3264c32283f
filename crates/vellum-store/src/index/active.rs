//! The runs in use: what the store lists, minus what is superseded, each in its local form.
//!
//! Invariant: readers see one consistent set at a time and never wait for a refresh. Another process may add,
//! merge and delete runs at any moment; a run that vanishes between listing and reading means listing again.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard, RwLock};
use vellum_crypto::VolumeKeys;
use vellum_host::private_dir::create_private_dir;
use vellum_types::{BlobId, BlobKind, DecodeError, PackId};

use super::record::{IndexRecord, OBJECT_MAX};
use super::{BlobLocation, INDEX_FOLDER, IndexRun, IndexRunId, layout, run};
use crate::blob::BlobError;
use crate::error::StoreError;
use crate::object::{ObjectInfo, ObjectKey, ObjectStore, map_requests};
use crate::pack::PackFault;
use vellum_host::owner::set_owner_from_dir;

/// Listings tried before giving up, a count: each failure needs another process to merge in between.
const ATTEMPTS: usize = 8;
/// Listings tried to learn where a vanished run went, a count; after that it counts as deleted.
const EXPLAIN_ATTEMPTS: usize = 3;
/// Largest index object that is fetched together with others, bytes.
const SMALL_OBJECT_MAX: u64 = 1 << 20;
/// For how long an index object that is damaged is not fetched again.
const RETRY_DAMAGED: Duration = Duration::from_mins(1);
/// Temporary files of processes that died are removed when they are this old.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// One consistent view of the index.
#[derive(Default)]
pub(crate) struct IndexView {
    /// Largest first: most blobs are in them.
    pub(super) runs: Vec<Arc<IndexRun>>,
    pub(super) condemned: HashMap<PackId, u64>,
}

/// What is remembered about the store's index folder.
#[derive(Default)]
pub(super) struct KnownIndexObjects {
    /// Index objects that may exist, superseded ones included.
    pub(super) listed: HashSet<IndexRunId>,
    /// Objects that could not be used.
    problems: HashMap<IndexRunId, IndexProblem>,
    healed: bool,
}

impl KnownIndexObjects {
    /// Whether an object could not be used a moment ago.
    fn is_lately_damaged(&self, id: &IndexRunId) -> bool {
        self.problems.get(id).is_some_and(|problem| problem.tried.elapsed() < RETRY_DAMAGED)
    }
}

/// An index object that could not be used.
struct IndexProblem {
    error: Arc<BlobError>,
    /// When it was last fetched.
    tried: Instant,
}

/// The index of one volume.
pub(crate) struct BlobIndex {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) keys: Arc<VolumeKeys>,
    folder: PathBuf,
    active: RwLock<Arc<IndexView>>,
    known: Mutex<KnownIndexObjects>,
}

impl IndexView {
    pub(super) fn from_runs(mut runs: Vec<Arc<IndexRun>>) -> Self {
        // A superseded run stays in the store until it is deleted, which may have failed.
        let superseded: HashSet<_> = runs.iter().flat_map(|run| run.superseded_runs()).copied().collect();
        runs.retain(|run| !superseded.contains(&run.id()));
        // The id decides between equal sizes, so that all processes look in the same order.
        runs.sort_by_key(|run| (std::cmp::Reverse(run.len()), run.id()));
        let condemned = runs.iter().flat_map(|run| run.condemned_packs());
        let condemned = condemned.map(|condemned| (condemned.pack, condemned.since)).collect();
        Self { runs, condemned }
    }

    fn get(&self, id: &IndexRunId) -> Option<&Arc<IndexRun>> {
        self.runs.iter().find(|run| run.id() == *id)
    }

    /// A place that will stay.
    pub(crate) fn find_live_copy(&self, id: &BlobId) -> Option<BlobLocation> {
        // The usual case: no collection is under way.
        if self.condemned.is_empty() {
            return self.runs.iter().find_map(|run| run.find_blob(id));
        }
        self.runs
            .iter()
            .filter_map(|run| run.find_blob(id))
            .find(|place| !self.condemned.contains_key(&place.pack))
    }

    /// All places, the best first.
    pub(crate) fn find_all_copies(&self, id: &BlobId) -> Vec<BlobLocation> {
        let mut places: Vec<_> = self.runs.iter().filter_map(|run| run.find_blob(id)).collect();
        places.sort_by_key(|place| self.condemned.contains_key(&place.pack));
        places.dedup();
        places
    }

    pub(crate) fn runs(&self) -> &[Arc<IndexRun>] {
        &self.runs
    }

    pub(crate) fn condemned_packs(&self) -> &HashMap<PackId, u64> {
        &self.condemned
    }
}

impl BlobIndex {
    /// Opens the local copy in `folder`. That of a directory store is brought up to date.
    pub(crate) fn open(
        objects: Arc<dyn ObjectStore>,
        keys: Arc<VolumeKeys>,
        folder: &Path,
    ) -> Result<Self, BlobError> {
        let make = || -> std::io::Result<()> {
            create_private_dir(folder)?;
            // For root, who may work in the state directory of a user: that user must be able to go on without root.
            let open = std::fs::File::open;
            set_owner_from_dir(open(folder.parent().unwrap_or(folder))?, open(folder)?)
        };
        let failed = |source| BlobError::Local { path: folder.to_owned(), action: "make", source };
        make().map_err(failed)?;
        let index = Self {
            objects,
            keys,
            folder: folder.to_owned(),
            active: RwLock::default(),
            known: Mutex::default(),
        };
        if !index.load_local_view() {
            index.refresh_view()?;
        }
        Ok(index)
    }

    /// Begins with the local runs of a remote store as they are, if there are any. That spares a request: what others
    /// added or deleted since is noticed when a blob is not where it is expected, and by whoever refreshes before relying
    /// on what is there.
    fn load_local_view(&self) -> bool {
        if !self.objects.is_remote() {
            return false;
        }
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return false };
        let names = entries.flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.to_str().and_then(IndexRunId::from_name));
        // A file that cannot be opened is left out. Whoever misses its blobs refreshes the view, which
        // fetches the run again.
        let open = |id: IndexRunId| IndexRun::open(&self.run_path(&id), self.keys.volume_id(), id).ok();
        let runs: Vec<_> = ids.filter_map(open).map(Arc::new).collect();
        let is_known = !runs.is_empty();
        self.publish_view(IndexView::from_runs(runs));
        is_known
    }

    /// The present view; it stays as it is while it is held.
    pub(crate) fn current_view(&self) -> Arc<IndexView> {
        self.active.read().clone()
    }

    pub(super) fn lock_known(&self) -> MutexGuard<'_, KnownIndexObjects> {
        self.known.lock()
    }

    pub(super) fn publish_view(&self, active: IndexView) {
        // Before the view is replaced, with which this compares the new one.
        self.tell_node_packs(&active);
        *self.active.write() = Arc::new(active);
    }

    /// Tells the local copies of a remote store which packs hold nodes, if that may have changed.
    fn tell_node_packs(&self, active: &IndexView) {
        let Some(copies) = self.objects.as_block_store() else { return };
        let before = self.current_view();
        // A run is named by the hash of its object, so equal ids stand for equal packs.
        if before.runs.iter().map(|run| run.id()).eq(active.runs.iter().map(|run| run.id())) {
            return;
        }
        let packs = active.runs.iter().flat_map(|run| run.packs());
        copies.set_node_packs(
            packs.filter(|(_, kind)| *kind == BlobKind::Node).map(|(pack, _)| pack).collect(),
        );
    }

    /// Index objects that cannot be used, and why.
    pub(crate) fn problems(&self) -> Vec<Arc<BlobError>> {
        self.lock_known().problems.values().map(|problem| problem.error.clone()).collect()
    }

    /// Reads which runs other processes added, merged and deleted.
    pub(crate) fn refresh_view(&self) -> Result<(), BlobError> {
        self.refresh_locked(&mut self.lock_known())
    }

    pub(super) fn refresh_locked(&self, known: &mut KnownIndexObjects) -> Result<(), BlobError> {
        for attempt in 0..ATTEMPTS {
            let names = self.objects.select_objects(INDEX_FOLDER, is_index_key)?;
            let mut listed: HashSet<_> =
                names.objects.iter().filter_map(|info| parse_run_key(&info.key)).collect();
            let before = self.current_view();
            let loaded = self.load_small_runs(&names.objects, &before, known);
            // A listed run was deleted since, because another process merged it. The next listing shows the result.
            let Some(mut runs) = self.load_listed_runs(&listed, loaded, &before, known)? else { continue };
            let vanished = self.keep_unlisted_runs(&mut listed, &before, &mut runs)?;
            let active = IndexView::from_runs(runs);
            // A run is gone because a newer one supersedes it. If none says so, this listing may have missed the
            // newer one, and another listing is tried.
            let explained = |id: &IndexRunId| {
                active.runs.iter().any(|run| run.superseded_runs().contains(id)) || listed.contains(id)
            };
            if attempt < EXPLAIN_ATTEMPTS && !vanished.iter().all(explained) {
                continue;
            }
            // Local files are compared with the listing only if it changed, since most refreshes find nothing new.
            if listed != known.listed {
                self.remove_stale_runs(&listed);
            }
            known.problems.retain(|id, _| listed.contains(id));
            known.listed = listed;
            self.publish_view(active);
            return Ok(());
        }
        Err(BlobError::Unsettled)
    }

    /// Loads those of the listed runs that are not in use and are small: several at once, where waiting dominates.
    fn load_small_runs(
        &self,
        listed: &[ObjectInfo],
        before: &IndexView,
        known: &KnownIndexObjects,
    ) -> HashMap<IndexRunId, Result<Arc<IndexRun>, BlobError>> {
        let small = listed.iter().filter(|info| info.size <= SMALL_OBJECT_MAX);
        let wanted: Vec<_> = small
            .filter_map(|info| parse_run_key(&info.key))
            .filter(|id| !known.is_lately_damaged(id) && before.get(id).is_none())
            .collect();
        let loaded = map_requests(&*self.objects, &wanted, |id| self.load_run(id));
        wanted.into_iter().zip(loaded).collect()
    }

    /// The listed runs, some of which are loaded; `None` if one of them has vanished since.
    fn load_listed_runs(
        &self,
        listed: &HashSet<IndexRunId>,
        mut loaded: HashMap<IndexRunId, Result<Arc<IndexRun>, BlobError>>,
        before: &IndexView,
        known: &mut KnownIndexObjects,
    ) -> Result<Option<Vec<Arc<IndexRun>>>, BlobError> {
        let mut runs = Vec::with_capacity(listed.len());
        for id in listed.iter() {
            // Objects of the index do not change, but what lies between may garble them. They may be large, and each
            // blob that is not found leads here, so that one which stays damaged is fetched now and then only.
            if known.is_lately_damaged(id) {
                continue;
            }
            if let Some(run) = before.get(id) {
                runs.push(run.clone());
                continue;
            }
            // Large ones one after another: each is in memory whole.
            match loaded.remove(id).unwrap_or_else(|| self.load_run(id)) {
                Ok(run) => {
                    known.problems.remove(id);
                    runs.push(run);
                }
                Err(BlobError::Store(error)) if error.is_not_found() => return Ok(None),
                Err(error @ BlobError::Index { .. }) => {
                    let problem = IndexProblem { error: Arc::new(error), tried: Instant::now() };
                    known.problems.insert(*id, problem);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(runs))
    }

    /// Keeps runs that the listing omits though they exist; returns those that are gone.
    fn keep_unlisted_runs(
        &self,
        listed: &mut HashSet<IndexRunId>,
        before: &IndexView,
        runs: &mut Vec<Arc<IndexRun>>,
    ) -> Result<Vec<IndexRunId>, BlobError> {
        let mut vanished = Vec::new();
        for run in before.runs.iter().filter(|run| !listed.contains(&run.id())).collect::<Vec<_>>() {
            // A run is dropped only if the store says that the object is gone: without it, its blobs would be
            // stored again.
            match self.objects.object_size(&run.id().object_key()) {
                Ok(_) => {
                    listed.insert(run.id());
                    runs.push(run.clone());
                }
                Err(error) if error.is_not_found() => vanished.push(run.id()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(vanished)
    }

    /// Removes the local form of a run that is gone.
    pub(super) fn remove_local_run(&self, id: &IndexRunId) {
        // A file that stays is removed by the next refresh that finds it stale.
        let _ = std::fs::remove_file(self.run_path(id));
    }

    fn run_path(&self, id: &IndexRunId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    fn load_run(&self, id: &IndexRunId) -> Result<Arc<IndexRun>, BlobError> {
        match IndexRun::open(&self.run_path(id), self.keys.volume_id(), *id) {
            Ok(run) => Ok(Arc::new(run)),
            // If the file is missing, damaged or of another version, the store has the original.
            Err(_) => self.fetch_run(id),
        }
    }

    /// Reads an index object and makes its local form.
    fn fetch_run(&self, id: &IndexRunId) -> Result<Arc<IndexRun>, BlobError> {
        let record = match self.read_record(id) {
            // A garbled answer is not repeated; damage is.
            Err(BlobError::Index { .. }) => self.read_record(id)?,
            read => read?,
        };
        self.create_local_run(*id, &record)
    }

    fn read_record(&self, id: &IndexRunId) -> Result<IndexRecord, BlobError> {
        let fault = |fault: PackFault| BlobError::Index { name: id.to_string(), fault };
        let object = self.objects.get_object(&id.object_key(), OBJECT_MAX).map_err(|error| match error {
            StoreError::TooLarge { size, .. } => fault(PackFault::TooLong(size)),
            StoreError::NotAFile { .. } => fault(DecodeError::Invalid("kind of file").into()),
            other => other.into(),
        })?;
        // The name is the hash, so the store cannot return one run in the place of another.
        if IndexRunId::from_object_bytes(&object) != *id {
            return Err(fault(DecodeError::Invalid("hash").into()));
        }
        IndexRecord::open(&self.keys, &object).map_err(fault)
    }

    /// Makes the local form of a run. Where the local disk is full, memory has to do.
    pub(super) fn create_local_run(
        &self,
        id: IndexRunId,
        record: &IndexRecord,
    ) -> Result<Arc<IndexRun>, BlobError> {
        let path = self.run_path(&id);
        let bytes = layout::encode_run(record, self.keys.volume_id(), id);
        // A large run is mapped from its file. A small one, or one whose file cannot be written, is used from memory.
        if run::write_run_file(&path, &bytes).is_ok()
            && bytes.len() as u64 > run::READ_WHOLE_MAX
            && let Ok(run) = IndexRun::open(&path, self.keys.volume_id(), id)
        {
            return Ok(Arc::new(run));
        }
        let run = IndexRun::from_bytes(bytes).map_err(|fault| BlobError::LocalRun { path, fault })?;
        Ok(Arc::new(run))
    }

    /// The run again, from the store, if its local form is damaged.
    pub(super) fn ensure_intact_run(&self, run: &Arc<IndexRun>) -> Result<Arc<IndexRun>, BlobError> {
        if run.is_intact() { Ok(run.clone()) } else { self.fetch_run(&run.id()) }
    }

    /// Checks all local forms, once per process, and replaces the damaged. True if there were any.
    pub(crate) fn repair_local_runs(&self) -> Result<bool, BlobError> {
        let mut known = self.lock_known();
        // Once per process, since the check reads the whole index.
        if std::mem::replace(&mut known.healed, true) {
            return Ok(false);
        }
        let before = self.current_view();
        let runs: Vec<_> =
            before.runs.iter().map(|run| self.ensure_intact_run(run)).collect::<Result<_, _>>()?;
        let replaced = runs.iter().zip(&before.runs).any(|(new, old)| !Arc::ptr_eq(new, old));
        if replaced {
            self.publish_view(IndexView::from_runs(runs));
        }
        Ok(replaced)
    }

    /// Removes local files of runs that are gone. Failures wait for the next time.
    fn remove_stale_runs(&self, listed: &HashSet<IndexRunId>) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let gone = match name.to_str().and_then(IndexRunId::from_name) {
                Some(id) => !listed.contains(&id),
                // A younger one may belong to a process that is about to rename it.
                None => {
                    Path::new(&name).extension().is_some_and(|ext| ext == "tmp") && is_leftover_file(&entry)
                }
            };
            if gone {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn is_leftover_file(entry: &std::fs::DirEntry) -> bool {
    let modified = entry.metadata().and_then(|meta| meta.modified());
    modified.is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > LEFTOVER_AGE))
}

/// Whether a key is that of an object of the index.
pub fn is_index_key(key: &ObjectKey) -> bool {
    parse_run_key(key).is_some()
}

fn parse_run_key(key: &ObjectKey) -> Option<IndexRunId> {
    let id = IndexRunId::from_name(key.name())?;
    // The same name in another folder would make one run appear twice.
    (id.object_key() == *key).then_some(id)
}
