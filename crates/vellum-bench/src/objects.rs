//! An object store: which of the promises that Vellum relies on it keeps, then how fast it is.
//!
//! Invariant: only keys in one folder with a name of the bench's own are touched, and they are deleted however the
//! bench ends; so is a store that was made for it ([`BenchStore`]).

mod container;
mod promises;
mod speed;

use std::time::Duration;

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, ObjectStore, StoreError};

use crate::error::{BenchError, Result, check_interrupted};
use crate::report::BenchReport;
use crate::thread_group::THREADS_MAX;

pub use container::BenchStore;
pub use promises::{CheckedPromise, StoreVerdict};

/// The numbers of one bench.
#[derive(Debug, Clone, Copy)]
pub struct ObjectBenchParameters {
    /// Bytes of a small object.
    pub small_object_size: u64,
    /// Small objects in all; 0: only the promises are looked at.
    pub small_objects: u64,
    /// Bytes of all big objects together; 0: none are measured.
    pub big_object_size: u64,
    /// Bytes of one big object.
    pub block_size: u64,
    /// Number of parallel requests.
    pub threads: usize,
    /// Number of runs.
    pub runs: usize,
    /// A request that takes longer is reported.
    pub patience: Duration,
}

/// Largest object, bytes: it is in memory whole.
const OBJECT_MAX: u64 = 1 << 30;

impl Default for ObjectBenchParameters {
    fn default() -> Self {
        Self {
            small_object_size: 128 << 10,
            small_objects: 100,
            big_object_size: 256 << 20,
            block_size: 4 << 20,
            threads: 4,
            runs: 3,
            patience: Duration::from_secs(5),
        }
    }
}

impl ObjectBenchParameters {
    fn validate(&self) -> Result<()> {
        let Self { small_object_size, block_size, threads, runs, .. } = *self;
        let wrong = if small_object_size > OBJECT_MAX || !(1..=OBJECT_MAX).contains(&block_size) {
            "objects have 1 GiB at most, and blocks at least a byte".into()
        } else if !(1..=THREADS_MAX).contains(&threads) || runs == 0 {
            format!("there are 1 to {THREADS_MAX} threads, and at least one run")
        } else {
            return Ok(());
        };
        Err(BenchError::Parameter(wrong))
    }
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct ObjectBenchFindings {
    /// Whether Vellum can use the store.
    pub verdict: StoreVerdict,
    /// Promise by promise.
    pub promises: Vec<CheckedPromise>,
    /// How fast it is.
    #[serde(flatten)]
    pub report: BenchReport,
}

/// Keys of one bench, all in one folder.
struct BenchKeys {
    folder: String,
}

impl BenchKeys {
    fn new() -> Result<Self> {
        Ok(Self { folder: crate::ground::random_name("vellum-objbench")? })
    }

    fn object_key(&self, name: &str) -> Result<ObjectKey, StoreError> {
        ObjectKey::new(format!("{}/{name}", self.folder))
    }
}

/// Measures a store that is there.
pub fn run_object_bench(
    store: &dyn ObjectStore,
    parameters: &ObjectBenchParameters,
    meter: &ProgressMeter,
) -> Result<ObjectBenchFindings> {
    parameters.validate()?;
    // A folder with a random name: two benches on one store do not meet, and no folder of anybody else is
    // touched.
    let keys = BenchKeys::new()?;
    let found = measure_store(store, &keys, parameters, meter);
    // After a failure as well: whoever pays for the store would pay for what is left.
    let swept = delete_bench_objects(store, &keys);
    match (found, swept) {
        // Of a store that keeps no promises it is no news that objects could not be deleted.
        (Ok(found), Err(error)) if found.verdict != StoreVerdict::Unfit => Err(error.into()),
        (found, _) => found,
    }
}

fn measure_store(
    store: &dyn ObjectStore,
    keys: &BenchKeys,
    parameters: &ObjectBenchParameters,
    meter: &ProgressMeter,
) -> Result<ObjectBenchFindings> {
    let listed = [
        ("small_object_size", parameters.small_object_size),
        ("small_objects", parameters.small_objects),
        ("big_object_size", parameters.big_object_size),
        ("block_size", parameters.block_size),
        ("threads", parameters.threads as u64),
        ("runs", parameters.runs as u64),
    ];
    let target = [("store".to_owned(), store.describe_location())].into();
    let mut report = BenchReport::new("objects", target, &listed);
    let promises = promises::check_promises(store, keys, parameters, meter)?;
    let verdict = StoreVerdict::from_checked(&promises);
    check_interrupted(meter)?;
    // A store that does not keep what it was given has no speed.
    if verdict != StoreVerdict::Unfit {
        speed::run_speed_trial(&speed::SpeedTrial { store, keys, parameters, meter }, &mut report)?;
    }
    Ok(ObjectBenchFindings { verdict, promises, report })
}

/// Deletes everything in the bench's folder.
fn delete_bench_objects(store: &dyn ObjectStore, keys: &BenchKeys) -> Result<(), StoreError> {
    let mut first = Ok(());
    let mut delete = |key: &ObjectKey| {
        // A failure does not end this, so that everything goes that can be deleted.
        if let Err(error) = store.delete_object(key)
            && first.is_ok()
        {
            first = Err(error);
        }
    };
    for name in promises::NAMES {
        // A listing may be stale: what is known is deleted without it.
        if let Ok(key) = keys.object_key(name) {
            delete(&key);
        }
    }
    match store.list_keys(&keys.folder) {
        Ok(listed) => listed.iter().for_each(delete),
        // An error of a deletion that came before is kept, since it names an object.
        Err(error) => first = first.and(Err(error)),
    }
    first
}
