//! Benches of stores that keep their promises, and of those that do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vellum_bench::objects::{
    self, BenchStore, CheckedPromise, ObjectBenchFindings, ObjectBenchParameters, StoreVerdict,
};
use vellum_bench::{BenchError, BenchReport};
use vellum_host::ProgressMeter;
use vellum_store::{ObjectInfo, ObjectKey, ObjectStore, StoreError, StoreLocation, create_store};
use vellum_testkit::faulty::{FaultTrigger, FaultyStore, StoreFault, StoreOperation};

const SMALL: ObjectBenchParameters = ObjectBenchParameters {
    small_object_size: 1000,
    small_objects: 7,
    big_object_size: 100_000,
    block_size: 30_000,
    threads: 2,
    runs: 2,
    patience: Duration::from_secs(3600),
};

/// A store in memory that no other test uses.
fn memory() -> Arc<dyn ObjectStore> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    create_store(&StoreLocation::new(format!("memory://bench-{}", COUNT.fetch_add(1, Ordering::Relaxed))))
        .unwrap()
}

fn measure(store: &dyn ObjectStore) -> ObjectBenchFindings {
    objects::run_object_bench(store, &SMALL, &ProgressMeter::default()).unwrap()
}

fn broken(found: &ObjectBenchFindings) -> Vec<&CheckedPromise> {
    found.promises.iter().filter(|promise| !promise.holds).collect()
}

/// The store beneath, but for what a test replaces.
struct Odd {
    inner: Arc<dyn ObjectStore>,
    /// Compare-and-swaps do not compare.
    blind: bool,
    /// Puts replace.
    replaces: bool,
    /// Listings do not say when objects were put.
    timeless: bool,
    /// What every request takes.
    delay: Duration,
}

impl Odd {
    fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, blind: false, replaces: false, timeless: false, delay: Duration::ZERO }
    }
}

impl ObjectStore for Odd {
    fn describe_location(&self) -> String {
        "odd".into()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        std::thread::sleep(self.delay);
        self.inner.get_object(key, max)
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        self.inner.get_range(key, offset, len)
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        self.inner.object_size(key)
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        if self.replaces {
            self.inner.delete_object(key)?;
        }
        self.inner.put_object(key, bytes)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        if !self.blind {
            return self.inner.swap_ref(key, expected, new);
        }
        let now = self.inner.get_object(key, 1 << 20).ok();
        self.inner.swap_ref(key, now.as_deref(), new)
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed = self.inner.list_objects(folder)?;
        if self.timeless {
            listed.iter_mut().for_each(|object| object.modified = None);
        }
        Ok(listed)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete_object(key)
    }
}

#[test]
fn a_directory_keeps_every_promise_and_nothing_stays_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("store").display().to_string();
    let container = BenchStore::open_or_create(&StoreLocation::new(url)).unwrap();
    let found = measure(&*container.store);
    assert_eq!(broken(&found), Vec::<&CheckedPromise>::new());
    assert_eq!(found.verdict, StoreVerdict::Fit);
    assert!(found.report.rows.iter().all(|row| row.runs.len() == 2), "{:?}", found.report.rows);
    for name in ["put small", "get small, time", "head", "delete", "list", "put big", "get big", "get part"] {
        assert!(found.report.find_row(name).is_some(), "{name}");
    }
    assert!(container.store.list_objects("").unwrap().is_empty());
    drop(container);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn findings_are_a_report_that_can_be_compared() {
    let found = measure(&*memory());
    let mut value = serde_json::to_value(&found).unwrap();
    value["version"] = 1.into();
    let report = BenchReport::parse_json("x", &serde_json::to_vec(&value).unwrap()).unwrap();
    let names = |report: &BenchReport| report.rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&report), names(&found.report));
    assert_eq!(report.parameters, found.report.parameters);
}

#[test]
fn a_store_that_loses_a_conditional_put_is_unfit_and_it_says_why() {
    let found = measure(&Odd { blind: true, ..Odd::new(memory()) });
    assert_eq!(found.verdict, StoreVerdict::Unfit);
    let names: Vec<_> = broken(&found).iter().map(|promise| promise.promise).collect();
    assert!(names.contains(&"a ref changes by compare-and-swap"), "{names:?}");
    assert!(broken(&found).iter().all(|promise| promise.consequence.is_some() && promise.problem.is_some()));
    // What it cannot be trusted with is not measured.
    assert!(found.report.rows.is_empty());
}

#[test]
fn a_store_that_replaces_objects_is_unfit() {
    let found = measure(&Odd { replaces: true, ..Odd::new(memory()) });
    assert_eq!(found.verdict, StoreVerdict::Unfit);
    let mut broken = broken(&found);
    broken.retain(|promise| !promise.livable);
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert_eq!(broken[0].promise, "an object is never replaced");
    assert!(broken[0].problem.as_ref().unwrap().contains("took a second object"));
}

#[test]
fn a_store_that_acknowledges_and_forgets_is_unfit() {
    let store = FaultyStore::new(memory());
    store.set_script([(FaultTrigger::Each(StoreOperation::Put, String::new()), StoreFault::Lost)]);
    let found = measure(&store);
    assert_eq!(found.verdict, StoreVerdict::Unfit);
    assert!(!found.promises.iter().find(|one| one.promise == "get what was put").unwrap().holds);
}

#[test]
fn a_store_that_refuses_everything_is_told_so_once_and_not_tried_on() {
    let store = FaultyStore::new(memory());
    store.set_script([(FaultTrigger::From(0), StoreFault::Before)]);
    let found = measure(&store);
    assert_eq!(found.verdict, StoreVerdict::Unfit);
    assert!(broken(&found)[0].problem.as_ref().unwrap().contains("injected"));
    assert!(broken(&found)[1..].iter().all(|one| one.problem.as_ref().unwrap().starts_with("not tried")));
}

#[test]
fn a_stale_listing_and_a_flipped_bit_are_found() {
    let store = FaultyStore::new(memory());
    store.set_script([(FaultTrigger::Each(StoreOperation::List, String::new()), StoreFault::Stale)]);
    let found = measure(&store);
    assert!(!found.promises.iter().find(|one| one.promise == "a listing shows what was put").unwrap().holds);
    store.set_script([(FaultTrigger::Each(StoreOperation::GetRange, String::new()), StoreFault::Flip(3))]);
    let found = measure(&store);
    assert!(!found.promises.iter().find(|one| one.promise == "get a part of an object").unwrap().holds);
}

#[test]
fn what_vellum_can_live_without_is_no_reason_to_refuse() {
    let found = measure(&Odd { timeless: true, ..Odd::new(memory()) });
    assert_eq!(found.verdict, StoreVerdict::Limited);
    assert!(broken(&found).iter().all(|promise| promise.livable && promise.consequence.is_some()));
    assert!(!found.report.rows.is_empty());
}

#[test]
fn a_slow_store_is_fit_and_told_to_be_slow() {
    let store = Odd { delay: Duration::from_millis(20), ..Odd::new(memory()) };
    let parameters = ObjectBenchParameters {
        patience: Duration::from_millis(10),
        small_objects: 0,
        big_object_size: 0,
        ..SMALL
    };
    let found = objects::run_object_bench(&store, &parameters, &ProgressMeter::default()).unwrap();
    assert_ne!(found.verdict, StoreVerdict::Unfit);
    assert!(found.promises.iter().find(|one| one.promise == "get what was put").unwrap().slow);
}

#[test]
fn stopped_it_deletes_what_it_put() {
    let store = memory();
    for step in [1, 5, 18, 25, 40] {
        let meter = ProgressMeter::default();
        let stopped = std::thread::scope(|scope| {
            scope.spawn(|| {
                // A bench that fails before is told of below.
                let begun = std::time::Instant::now();
                while meter.read_progress().items < step && begun.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                meter.request_stop();
            });
            objects::run_object_bench(&*store, &ObjectBenchParameters { runs: 100_000, ..SMALL }, &meter)
        });
        assert!(matches!(stopped, Err(BenchError::Interrupted)), "{stopped:?}");
        assert!(store.list_objects("").unwrap().is_empty(), "stopped at step {step}");
    }
}
