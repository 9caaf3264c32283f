//! A machine that crashes: a disk with the live state of a worktree, and the store of its volume.
//!
//! All that happens on either has a place in one order, so that a crash leaves both as they were at one moment.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use vellum_fs::log::LogHooks;
use vellum_fs::tree::head::LiveHead;
use vellum_fs::{LiveFilesystem, LiveOptions, WriteLog};
use vellum_live::sim::{SimFolder, SimLoss, SimRandom};
use vellum_live::{EmbeddedStore, EngineLimits};
use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, StoreError};
use vellum_volume::volume::NewWorktree;
use vellum_volume::{SnapshotStatistics, StateDir, Volume};

use crate::stand::{Stand, temporary};

/// Bytes of the write log: segments have a quarter, so that there are many.
const LOG_LIMIT: u64 = 400_000;
/// Checkpoints are made of short journals already.
const LIMITS: EngineLimits = EngineLimits { journal: 30_000, run: 0 };
/// The worktree.
const NAME: &str = "main";

type Objects = BTreeMap<String, Arc<[u8]>>;

/// What a crash leaves.
#[derive(Clone)]
pub struct Wreck {
    files: BTreeMap<String, Vec<u8>>,
    objects: Objects,
}

/// The machine.
pub struct Machine {
    pub disk: Arc<SimFolder>,
    pub store: Arc<SimStore>,
    pub live: Arc<EmbeddedStore>,
    pub volume: Arc<Volume>,
    /// The state directory of the volume as `init` left it: what is in it otherwise may be lost.
    pristine: Arc<TempDir>,
}

impl Machine {
    /// A machine with a new volume.
    pub fn new() -> (Self, Stand) {
        let pristine = temporary();
        let store = Arc::new(SimStore::new(SimFolder::with_files(BTreeMap::new()), Objects::new()));
        let state = StateDir::create(pristine.path()).unwrap();
        let new = NewWorktree {
            store: None,
            name: NAME.into(),
            encrypted: false,
            is_in_device_line: false,
            chunk_sizes: None,
        };
        Volume::init_volume_on(store.clone(), &state, &new, || panic!("a new volume asks for nothing"))
            .unwrap();
        let objects = store.objects.lock().now.clone();
        Self::start(Arc::new(pristine), Wreck { files: BTreeMap::new(), objects })
    }

    /// A machine that finds what another one left.
    pub fn boot(&self, wreck: Wreck) -> (Self, Stand) {
        Self::start(self.pristine.clone(), wreck)
    }

    fn start(pristine: Arc<TempDir>, Wreck { files, objects }: Wreck) -> (Self, Stand) {
        let dir = temporary();
        copy(pristine.path(), dir.path());
        let state = StateDir::find_enclosing(dir.path()).unwrap();
        let disk = SimFolder::with_files(files);
        let store = Arc::new(SimStore::new(disk.clone(), objects));
        let volume = Arc::new(Volume::open_on(store.clone(), &state).unwrap());
        let fresh = LiveHead::new(volume.empty_root(), SnapshotStatistics::default(), None);
        let (fs, live) = open(&disk, &volume, NAME, &fresh);
        let machine = Self { disk, store, live: live.clone(), volume, pristine };
        (machine, Stand::of(fs, live, Arc::new(dir)))
    }

    /// Opens another worktree, which stands on `fresh` if it is new.
    pub fn open(&self, name: &str, fresh: &LiveHead) -> LiveFilesystem {
        open(&self.disk, &self.volume, name, fresh).0
    }

    /// What a crash after so many operations may leave.
    pub fn crash(&self, ops: usize, loss: SimLoss, random: &mut SimRandom) -> Wreck {
        Wreck { files: self.disk.simulate_crash(ops, loss, random), objects: self.store.at(ops) }
    }
}

/// Of moments, given by the operations on the machine by then, the one that must, and the last that may, be found
/// after a crash. `durable`: operations, and the moment that was durable by then.
pub fn bounds(moments: &[usize], durable: &[(usize, usize)], ops: usize, loss: SimLoss) -> (usize, usize) {
    let committed = moments.iter().rposition(|at| *at <= ops).unwrap();
    let durable = durable.iter().rev().find(|(at, _)| *at <= ops).unwrap().1;
    let least = if loss == SimLoss::Nothing { committed } else { durable };
    (least, (committed + 1).min(moments.len() - 1))
}

fn open(
    disk: &Arc<SimFolder>,
    volume: &Arc<Volume>,
    name: &str,
    fresh: &LiveHead,
) -> (LiveFilesystem, Arc<EmbeddedStore>) {
    let log =
        Arc::new(WriteLog::open_in_folder(disk.sibling_folder(&format!("{name}-log")), LOG_LIMIT).unwrap());
    let folder = disk.sibling_folder(&format!("{name}-meta"));
    let live = Arc::new(EmbeddedStore::open_in_folder(folder, LogHooks(log.clone()), LIMITS).unwrap());
    let options = LiveOptions { worktree: Some(name.into()), ..LiveOptions::default() };
    (LiveFilesystem::open(volume.clone(), live.clone(), log, fresh, options).unwrap(), live)
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, to) = (entry.as_ref().unwrap(), to.join(entry.as_ref().unwrap().file_name()));
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A store that remembers every change, and fails when it is told to.
pub struct SimStore {
    disk: Arc<SimFolder>,
    objects: Mutex<Kept>,
}

/// An object's new content; None: it is gone.
type Change = (String, Option<Arc<[u8]>>);

struct Kept {
    first: Objects,
    now: Objects,
    /// Changes, each with the number of operations on the machine by then.
    history: Vec<(usize, Change)>,
    /// Changes that go well before none does any more, and whether the last one happens all the same.
    failing: Option<(u64, bool)>,
}

impl SimStore {
    fn new(disk: Arc<SimFolder>, objects: Objects) -> Self {
        let kept = Kept { first: objects.clone(), now: objects, history: Vec::new(), failing: None };
        Self { disk, objects: Mutex::new(kept) }
    }

    fn at(&self, ops: usize) -> Objects {
        let kept = self.objects.lock();
        let mut objects = kept.first.clone();
        for (_, (key, value)) in kept.history.iter().take_while(|(at, _)| *at <= ops) {
            set(&mut objects, key, value.clone());
        }
        objects
    }

    /// After so many changes it is away; the change at which that happens takes place if `happens`.
    pub fn fail(&self, after: u64, happens: bool) {
        self.objects.lock().failing = Some((after, happens));
    }

    /// It is there again.
    pub fn heal(&self) {
        self.objects.lock().failing = None;
    }

    fn change(
        &self,
        key: &str,
        check: impl FnOnce(&Objects) -> Result<(), StoreError>,
        value: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let mut kept = self.objects.lock();
        let fails = match &mut kept.failing {
            Some((0, happens)) => {
                if !std::mem::take(happens) {
                    return Err(away(key));
                }
                true
            }
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        };
        check(&kept.now)?;
        let value: Option<Arc<[u8]>> = value.map(Into::into);
        set(&mut kept.now, key, value.clone());
        let at = self.disk.record_external_step();
        kept.history.push((at, (key.into(), value)));
        if fails { Err(away(key)) } else { Ok(()) }
    }

    fn look<T>(&self, key: &str, look: impl FnOnce(&Objects) -> T) -> Result<T, StoreError> {
        let kept = self.objects.lock();
        if matches!(kept.failing, Some((0, _))) { Err(away(key)) } else { Ok(look(&kept.now)) }
    }

    fn found<T>(&self, key: &ObjectKey, look: impl FnOnce(&[u8]) -> T) -> Result<T, StoreError> {
        let found = self.look(key.as_str(), |objects| objects.get(key.as_str()).cloned())?;
        let place = self.describe_location();
        let name = key.as_str().into();
        found.map(|bytes| look(&bytes)).ok_or(StoreError::NotFound { place, key: name })
    }
}

fn set(objects: &mut Objects, key: &str, value: Option<Arc<[u8]>>) {
    match value {
        Some(value) => objects.insert(key.into(), value),
        None => objects.remove(key),
    };
}

fn away(key: &str) -> StoreError {
    let source = std::io::ErrorKind::TimedOut.into();
    StoreError::Io { place: "a store in memory".into(), key: key.into(), action: "reach", source }
}

impl ObjectStore for SimStore {
    fn describe_location(&self) -> String {
        "a store in memory".into()
    }

    fn get_object(&self, key: &ObjectKey, _max: u64) -> Result<Vec<u8>, StoreError> {
        self.found(key, <[u8]>::to_vec)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let range = offset as usize..(offset + len) as usize;
        self.found(key, |bytes| bytes.get(range).unwrap().to_vec())
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.found(key, |bytes| bytes.len() as u64)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let absent = |objects: &Objects| match objects.contains_key(key.as_str()) {
            true => Err(StoreError::Exists { place: self.describe_location(), key: key.as_str().into() }),
            false => Ok(()),
        };
        self.change(key.as_str(), absent, Some(bytes))
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let as_expected = |objects: &Objects| match objects.get(key.as_str()).map(|bytes| &**bytes)
            == expected
        {
            true => Ok(()),
            false => Err(StoreError::Changed { place: self.describe_location(), key: key.as_str().into() }),
        };
        self.change(key.as_str(), as_expected, new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.look(folder, |objects| {
            let within = |key: &str| {
                folder.is_empty() || key.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
            };
            let listed = objects.iter().filter(|(key, _)| within(key)).map(|(key, bytes)| ObjectInfo {
                key: ObjectKey::new(key.clone()).unwrap(),
                size: bytes.len() as u64,
                modified: None,
                version: None,
            });
            listed.collect()
        })
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.change(key.as_str(), |_| Ok(()), None)
    }
}
