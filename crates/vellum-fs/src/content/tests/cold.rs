//! Nodes that are not in memory are fetched outside of transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum_live::{Body, Bytes, LiveError, LiveStore, MemoryStore, Sequence, Visit};
use vellum_map::Span;
use vellum_store::Metered;
use vellum_volume::{Statistics, Volume};

use super::world::{FAR, World, content, far};
use crate::head::Head;
use crate::log::WriteLog;
use crate::{Fs, Options};

/// Counts what is asked of the object store while a transaction is under way.
struct Watched {
    inner: MemoryStore,
    objects: Arc<Metered>,
    within: AtomicU64,
}

impl LiveStore for Watched {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, LiveError> {
        self.inner.get(key)
    }

    fn scan(&self, span: &Span, visit: &mut Visit<'_>) -> Result<(), LiveError> {
        self.inner.scan(span, visit)
    }

    fn transact(&self, body: &mut Body<'_>) -> Result<Sequence, LiveError> {
        let before = self.objects.counts().gets;
        let done = self.inner.transact(body);
        self.within.fetch_add(self.objects.counts().gets - before, Ordering::Relaxed);
        done
    }

    fn wait_durable(&self, upto: Sequence) -> Result<(), LiveError> {
        self.inner.wait_durable(upto)
    }

    fn settle(&self, upto: Sequence) -> Result<(), LiveError> {
        self.inner.settle(upto)
    }

    fn freeze(&self, prefix: &[u8]) -> Result<(), LiveError> {
        self.inner.freeze(prefix)
    }

    fn fork_into(&self, dir: &std::path::Path) -> Result<(), LiveError> {
        self.inner.fork_into(dir)
    }

    fn memory(&self) -> usize {
        self.inner.memory()
    }
}

#[test]
fn a_transaction_waits_for_no_object() {
    let world = World::new();
    let objects = Arc::new(Metered::new(world.volume.objects.clone()));
    let volume = Arc::new(Volume::open_on(objects.clone(), &world.volume.state).unwrap());
    let live = Watched { inner: MemoryStore::default(), objects: objects.clone(), within: AtomicU64::new(0) };
    let live = Arc::new(live);
    let log = Arc::new(WriteLog::open(&world.dir.path().join("log"), world.limit).unwrap());
    let fresh = Head::new(world.base, Statistics::default(), None);
    let fs = Fs::open(volume, live.clone(), log, &fresh, Options::default()).unwrap();
    let before = objects.counts().gets;
    fs.truncate(FAR, 100).unwrap();
    assert!(objects.counts().gets > before, "all was in memory before");
    assert_eq!(live.within.load(Ordering::Relaxed), 0);
    assert_eq!(content(&fs, FAR), far()[..100]);
}
