//! Nodes that are not in memory are fetched outside of transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum_live::{
    CommitSequence, LiveError, LiveStore, MemoryStore, TransactionBody, ValueBytes, VisitScan,
};
use vellum_map::KeySpan;
use vellum_store::MeteredStore;
use vellum_volume::{SnapshotStatistics, Volume};

use super::world::{FAR, World, content, far};
use crate::log::WriteLog;
use crate::tree::head::LiveHead;
use crate::{LiveFilesystem, LiveOptions};

/// Counts what is asked of the object store while a transaction is under way.
struct Watched {
    inner: MemoryStore,
    objects: Arc<MeteredStore>,
    within: AtomicU64,
}

impl LiveStore for Watched {
    fn get(&self, key: &[u8]) -> Result<Option<ValueBytes>, LiveError> {
        self.inner.get(key)
    }

    fn scan(&self, span: &KeySpan, visit: &mut VisitScan<'_>) -> Result<(), LiveError> {
        self.inner.scan(span, visit)
    }

    fn run_transaction(&self, body: &mut TransactionBody<'_>) -> Result<CommitSequence, LiveError> {
        let before = self.objects.request_counts().gets;
        let done = self.inner.run_transaction(body);
        self.within.fetch_add(self.objects.request_counts().gets - before, Ordering::Relaxed);
        done
    }

    fn wait_until_durable(&self, upto: CommitSequence) -> Result<(), LiveError> {
        self.inner.wait_until_durable(upto)
    }

    fn wait_until_confirmed(&self, upto: CommitSequence) -> Result<(), LiveError> {
        self.inner.wait_until_confirmed(upto)
    }

    fn freeze_prefix(&self, prefix: &[u8]) -> Result<(), LiveError> {
        self.inner.freeze_prefix(prefix)
    }

    fn fork_into(&self, dir: &std::path::Path) -> Result<(), LiveError> {
        self.inner.fork_into(dir)
    }

    fn memory_size(&self) -> usize {
        self.inner.memory_size()
    }
}

#[test]
fn a_transaction_waits_for_no_object() {
    let world = World::new();
    let objects = Arc::new(MeteredStore::new(world.volume.objects.clone()));
    let volume = Arc::new(Volume::open_on(objects.clone(), &world.volume.state).unwrap());
    let live = Watched { inner: MemoryStore::default(), objects: objects.clone(), within: AtomicU64::new(0) };
    let live = Arc::new(live);
    let log = Arc::new(WriteLog::open(&world.dir.path().join("log"), world.limit).unwrap());
    let fresh = LiveHead::new(world.base, SnapshotStatistics::default(), None);
    let fs = LiveFilesystem::open(volume, live.clone(), log, &fresh, LiveOptions::default()).unwrap();
    let before = objects.request_counts().gets;
    fs.content().truncate(FAR, 100).unwrap();
    assert!(objects.request_counts().gets > before, "all was in memory before");
    assert_eq!(live.within.load(Ordering::Relaxed), 0);
    assert_eq!(content(&fs, FAR), far()[..100]);
}
