//! The promises of an object store, each tried, and what it means for Vellum when one does not hold.

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use vellum_host::ProgressMeter;
use vellum_store::{ObjectStore, StoreError};
use vellum_types::ErrorKind;

use super::{BenchKeys, ObjectBenchParameters};
use crate::error::{Result, check_interrupted};
use crate::thread_group::run_in_threads;

/// Whether Vellum can use a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreVerdict {
    /// It keeps every promise.
    Fit,
    /// It breaks some that Vellum can live without.
    Limited,
    /// It breaks one that Vellum relies on.
    Unfit,
}

impl StoreVerdict {
    pub(super) fn from_checked(checked: &[CheckedPromise]) -> Self {
        match checked.iter().filter(|one| !one.holds).map(|one| one.livable).reduce(|a, b| a && b) {
            None => Self::Fit,
            Some(true) => Self::Limited,
            Some(false) => Self::Unfit,
        }
    }
}

/// A promise that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckedPromise {
    /// Which.
    pub promise: &'static str,
    /// Whether the store keeps it.
    pub holds: bool,
    /// What it did instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether Vellum can live without it.
    pub livable: bool,
    /// What happens when it does not hold; None where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence: Option<&'static str>,
    /// How long it took to try, seconds.
    pub seconds: f64,
    /// A request took longer than anyone should have to wait.
    pub slow: bool,
}

/// Why a promise does not hold.
#[derive(Debug)]
enum BrokenPromise {
    /// The store refused, or could not be reached.
    Refused(StoreError),
    /// It answered, and wrongly.
    Wrong(String),
}

impl From<StoreError> for BrokenPromise {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

type PromiseResult = Result<(), BrokenPromise>;

/// A promise, and what Vellum makes of its lack.
struct StorePromise {
    name: &'static str,
    livable: bool,
    without: &'static str,
    check: fn(&PromiseTrial<'_>) -> PromiseResult,
}

const fn required_promise(
    name: &'static str,
    without: &'static str,
    check: fn(&PromiseTrial<'_>) -> PromiseResult,
) -> StorePromise {
    StorePromise { name, livable: false, without, check }
}

const fn optional_promise(
    name: &'static str,
    without: &'static str,
    check: fn(&PromiseTrial<'_>) -> PromiseResult,
) -> StorePromise {
    StorePromise { name, livable: true, without, check }
}

/// Objects of the checks, by the last part of their keys; those of the listing are in a folder.
pub(super) const NAMES: &[&str] =
    &["object", "empty", "large", "ref", "counter", "together-1", "together-2", "list/a", "list/b", "list/c"];

/// In the order in which they build on each other.
const PROMISES: &[StorePromise] = &[
    required_promise("put an object", "nothing can be stored", check_put),
    required_promise("get what was put", "nothing that is stored can be read", check_get),
    required_promise(
        "an object that is missing is told so",
        "Vellum cannot tell a new volume from a lost one",
        check_get_missing,
    ),
    required_promise("get a part of an object", "no file can be read out of a pack", check_get_range),
    required_promise("the length of an object", "packs cannot be checked before they are read", check_size),
    required_promise(
        "an object is never replaced",
        "two writers can destroy each other's packs",
        check_put_twice,
    ),
    required_promise(
        "a ref changes by compare-and-swap",
        "a snapshot can be lost when two writers meet",
        check_swap,
    ),
    required_promise(
        "no compare-and-swap is lost",
        "a snapshot can be lost when two writers meet",
        check_concurrent_swap,
    ),
    required_promise(
        "an object without bytes",
        "the collector's and the writers' marks cannot be stored",
        check_empty_object,
    ),
    required_promise("a large object", "packs cannot be stored", check_large_object),
    optional_promise(
        "a large object is read in parts at once",
        "restoring is slower than it could be",
        check_parallel_ranges,
    ),
    required_promise("several objects put together", "packs cannot be stored", check_put_all),
    required_promise(
        "a listing shows what was put",
        "the collector can delete what a writer has just stored",
        check_list,
    ),
    required_promise("a listing is of one folder, in order", "indexes are read in part", check_list_folder),
    optional_promise(
        "a listing knows when objects were put",
        "sessions are judged by this machine's clock",
        check_modified_times,
    ),
    required_promise(
        "conditions hold between machines",
        "a snapshot can be lost when two machines write",
        check_conditions,
    ),
    optional_promise(
        "a ref is deleted by compare-and-swap",
        "deleted refs stay in the store as small markers",
        check_conditional_deletion,
    ),
    required_promise("delete an object", "the collector can free nothing", check_delete),
    optional_promise(
        "delete what is not there",
        "a collector that was stopped has to be started again",
        check_delete_missing,
    ),
    required_promise(
        "what was deleted is gone",
        "the collector cannot tell what it has freed",
        check_list_deleted,
    ),
];

/// Clocks that are further apart than this cannot be compared: sessions count for a day.
const SKEW_MAX: Duration = Duration::from_secs(3600);

/// Threads that change one ref at once, and how often each does.
const SWAPPERS: usize = 4;
const SWAPS: usize = 8;

/// How often one change is tried again: as often as others can be in the way.
const SWAP_TRIES: usize = SWAPPERS * SWAPS;

/// What every check is given.
struct PromiseTrial<'a> {
    store: &'a dyn ObjectStore,
    keys: &'a BenchKeys,
    parameters: &'a ObjectBenchParameters,
}

/// Tries all promises in turn. Without the first there is nothing to try the others with. A store that is full breaks no
/// promise: nothing can be said of it.
pub(super) fn check_promises(
    store: &dyn ObjectStore,
    keys: &BenchKeys,
    parameters: &ObjectBenchParameters,
    meter: &ProgressMeter,
) -> Result<Vec<CheckedPromise>> {
    let trial = PromiseTrial { store, keys, parameters };
    let mut checked: Vec<CheckedPromise> = Vec::with_capacity(PROMISES.len());
    for promise in PROMISES {
        check_interrupted(meter)?;
        // Where nothing can be put, all other checks would only say the same again.
        let stored = checked.first().is_none_or(|first| first.holds);
        checked.push(trial.check_promise(promise, stored)?);
        meter.add_progress(1, 0);
    }
    Ok(checked)
}

impl PromiseTrial<'_> {
    fn check_promise(&self, promise: &StorePromise, stored: bool) -> Result<CheckedPromise> {
        let start = Instant::now();
        let problem = match stored.then(|| (promise.check)(self)) {
            None => Some("not tried, since nothing can be put".to_owned()),
            Some(Ok(())) => None,
            // A store that is full has broken no promise, and nothing more can be tried there.
            Some(Err(BrokenPromise::Refused(error))) if error.kind() == ErrorKind::NoSpace => {
                return Err(error.into());
            }
            Some(Err(BrokenPromise::Refused(error))) => Some(error.to_string()),
            Some(Err(BrokenPromise::Wrong(what))) => Some(what),
        };
        let took = start.elapsed();
        Ok(CheckedPromise {
            promise: promise.name,
            holds: problem.is_none(),
            livable: promise.livable,
            consequence: problem.is_some().then_some(promise.without),
            problem,
            seconds: took.as_secs_f64(),
            slow: took > self.parameters.patience,
        })
    }

    fn object_key(&self, name: &str) -> Result<vellum_store::ObjectKey, StoreError> {
        self.keys.object_key(name)
    }

    /// Bytes of a large object: two blocks and one byte, so that a service has to take it in parts.
    fn large_content(&self) -> Vec<u8> {
        let len = usize::try_from(2 * self.parameters.block_size + 1).unwrap_or(usize::MAX);
        // 251 divides no power of 2: parts of such a length differ, and show when they are exchanged.
        (0..len).map(|at| (at % 251) as u8).collect()
    }
}

/// What is put first. No two bytes next to each other are equal.
const CONTENT: &[u8] = b"0123456789abcdef";

fn broken_promise(what: impl Into<String>) -> PromiseResult {
    Err(BrokenPromise::Wrong(what.into()))
}

fn expect_equal(read: &[u8], expected: &[u8]) -> PromiseResult {
    // Another length is told apart from other bytes: it often means that a service ignores ranges, and not
    // that it damages objects.
    match (read == expected, read.len() == expected.len()) {
        (true, _) => Ok(()),
        (false, true) => broken_promise("it gave other bytes than were put"),
        (false, false) => {
            broken_promise(format!("it gave {} bytes where {} were put", read.len(), expected.len()))
        }
    }
}

fn check_put(trial: &PromiseTrial<'_>) -> PromiseResult {
    Ok(trial.store.put_object(&trial.object_key("object")?, CONTENT)?)
}

fn check_get(trial: &PromiseTrial<'_>) -> PromiseResult {
    expect_equal(&trial.store.get_object(&trial.object_key("object")?, CONTENT.len() as u64)?, CONTENT)
}

fn expect_not_found<T>(answer: Result<T, StoreError>) -> PromiseResult {
    match answer {
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => broken_promise(format!("in place of 'not found' it said: {error}")),
        Ok(_) => broken_promise("it gave an object that was never put"),
    }
}

fn check_get_missing(trial: &PromiseTrial<'_>) -> PromiseResult {
    expect_not_found(trial.store.get_object(&trial.object_key("missing")?, 1))?;
    // Services answer requests for ranges in their own way, so that both are tried.
    expect_not_found(trial.store.get_range(&trial.object_key("missing")?, 0, 1))
}

fn check_get_range(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("object")?;
    expect_equal(&trial.store.get_range(&key, 3, 5)?, CONTENT.get(3..8).unwrap_or_default())?;
    // This range begins within the object and ends behind it. HTTP allows a shorter answer, which must not be
    // taken for all of it.
    match trial.store.get_range(&key, 10, CONTENT.len() as u64) {
        Err(_) => Ok(()),
        Ok(_) => broken_promise("it gave bytes from behind the end"),
    }
}

fn check_size(trial: &PromiseTrial<'_>) -> PromiseResult {
    match trial.store.object_size(&trial.object_key("object")?)? {
        size if size == CONTENT.len() as u64 => {
            expect_not_found(trial.store.object_size(&trial.object_key("missing")?))
        }
        size => broken_promise(format!("it said {size} bytes where {} were put", CONTENT.len())),
    }
}

fn check_put_twice(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("object")?;
    match trial.store.put_object(&key, b"other") {
        Err(StoreError::Exists { .. }) => {}
        Err(error) => return broken_promise(format!("in place of 'exists' it said: {error}")),
        Ok(()) => return broken_promise("it took a second object with the key of the first"),
    }
    // The refusal is not enough: a service may have replaced the object and reported a failure after that.
    expect_equal(&trial.store.get_object(&key, CONTENT.len() as u64)?, CONTENT)
}

fn check_swap(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("ref")?;
    let refuse = |expected: Option<&[u8]>| match trial.store.swap_ref(&key, expected, Some(b"stolen")) {
        Err(StoreError::Changed { .. }) => Ok(()),
        Err(error) => broken_promise(format!("in place of 'changed' it said: {error}")),
        Ok(()) => broken_promise("it changed a ref that was not as expected"),
    };
    trial.store.swap_ref(&key, None, Some(b"one"))?;
    // To a service these are two conditions: that there is no object, and that the object has another tag.
    refuse(None)?;
    refuse(Some(b"two"))?;
    trial.store.swap_ref(&key, Some(b"one"), Some(b"two"))?;
    // A value that was replaced is refused, too: otherwise an outdated writer could undo the change of
    // another one.
    refuse(Some(b"one"))?;
    expect_equal(&trial.store.get_object(&key, 16)?, b"two")?;
    trial.store.swap_ref(&key, Some(b"two"), None)?;
    expect_not_found(trial.store.get_object(&key, 16))
}

/// Several handles of the store race, and one uses tags that are out of date: what one handle, as in the checks before, would
/// notice by itself.
fn check_conditions(trial: &PromiseTrial<'_>) -> PromiseResult {
    let found = trial.store.probe_guarantees()?;
    if found.best_mode().is_some() { Ok(()) } else { broken_promise(found.describe_missing().join("; ")) }
}

fn check_conditional_deletion(trial: &PromiseTrial<'_>) -> PromiseResult {
    if trial.store.probe_guarantees()?.deletes {
        Ok(())
    } else {
        broken_promise("it deletes whatever the condition says")
    }
}

fn check_concurrent_swap(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("counter")?;
    trial.store.swap_ref(&key, None, Some(b"0"))?;
    let group = run_in_threads(SWAPPERS, |_| (0..SWAPS).try_for_each(|_| Ok(increment_ref(trial, &key)?)));
    // Each change was tried as often as others can be in the way, so that an error here is a fault of the
    // store.
    if let Err(error) = group {
        return broken_promise(error.to_string());
    }
    let counted = trial.store.get_object(&key, 16)?;
    let expected = (SWAPPERS * SWAPS).to_string();
    if counted == expected.as_bytes() {
        return Ok(());
    }
    broken_promise(format!("of {expected} changes that it acknowledged {} are there", counted.escape_ascii()))
}

/// Adds one to the number in a ref, as often as others are in the way.
fn increment_ref(trial: &PromiseTrial<'_>, key: &vellum_store::ObjectKey) -> Result<(), StoreError> {
    let mut tries = 0;
    loop {
        let before = trial.store.get_object(key, 16)?;
        // What is no number counts as 0, and the sum at the end shows that something was lost.
        let number: u64 = std::str::from_utf8(&before).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        match trial.store.swap_ref(key, Some(&before), Some((number + 1).to_string().as_bytes())) {
            Err(StoreError::Changed { .. }) if tries < SWAP_TRIES => tries += 1,
            other => return other,
        }
    }
}

fn check_empty_object(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("empty")?;
    // Bodies without bytes are a case of their own in HTTP, and in services.
    trial.store.put_object(&key, b"")?;
    expect_equal(&trial.store.get_object(&key, 0)?, b"")?;
    match trial.store.object_size(&key)? {
        0 => Ok(()),
        size => broken_promise(format!("it said {size} bytes of an object that has none")),
    }
}

fn check_large_object(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("large")?;
    // All bytes are compared: parts that a service has put together in another order have the right length,
    // too.
    let bytes = trial.large_content();
    trial.store.put_object(&key, &bytes)?;
    expect_equal(&trial.store.get_object(&key, bytes.len() as u64)?, &bytes)
}

fn check_parallel_ranges(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("large")?;
    let bytes = trial.large_content();
    // Rounded up, so that there are four parts and not five.
    let quarter = bytes.len() / 4 + 1;
    let parts: Vec<_> = bytes.chunks(quarter).collect();
    let group = run_in_threads(parts.len(), |number| {
        let part = parts.get(number).copied().unwrap_or_default();
        let read = trial.store.get_range(&key, (number * quarter) as u64, part.len() as u64)?;
        Ok(read == part)
    });
    match group {
        Ok(group) if group.results.iter().all(|same| *same) => Ok(()),
        Ok(_) => broken_promise("it gave other bytes than were put"),
        Err(error) => broken_promise(error.to_string()),
    }
}

fn check_put_all(trial: &PromiseTrial<'_>) -> PromiseResult {
    let first = trial.object_key("together-1")?;
    let second = trial.object_key("together-2")?;
    trial.store.put_objects(&[(first.clone(), b"1".as_slice()), (second.clone(), b"22".as_slice())])?;
    expect_equal(&trial.store.get_object(&first, 9)?, b"1")?;
    expect_equal(&trial.store.get_object(&second, 9)?, b"22")
}

fn check_list(trial: &PromiseTrial<'_>) -> PromiseResult {
    // Not in order, so that the order of a listing cannot be that of the puts.
    for name in ["list/b", "list/a", "list/c"] {
        trial.store.put_object(&trial.object_key(name)?, name.as_bytes())?;
    }
    let listed = trial.store.list_objects(&trial.keys.folder)?;
    for name in ["object", "list/a", "list/b", "list/c"] {
        let key = trial.object_key(name)?;
        // The checks before have left other objects, so that a listing may show more than these.
        if !listed.iter().any(|info| info.key == key) {
            return broken_promise(format!("it does not list {name}, which was just put"));
        }
    }
    Ok(())
}

fn check_list_folder(trial: &PromiseTrial<'_>) -> PromiseResult {
    let listed = trial.store.list_objects(&format!("{}/list", trial.keys.folder))?;
    let names: Vec<_> = listed.iter().map(|info| (info.key.name(), info.size)).collect();
    // Each was put with its name as content, which has 6 bytes.
    if names == [("a", 6), ("b", 6), ("c", 6)] {
        return Ok(());
    }
    broken_promise(format!("in place of a, b and c of 6 bytes it lists {names:?}"))
}

fn check_modified_times(trial: &PromiseTrial<'_>) -> PromiseResult {
    let listed = trial.store.list_objects(&format!("{}/list", trial.keys.folder))?;
    let Some(time) = listed.iter().find_map(|info| info.modified) else {
        return broken_promise("it does not tell");
    };
    let now = SystemTime::now();
    // Either of the two clocks may be ahead.
    let apart = now.duration_since(time).or_else(|_| time.duration_since(now)).unwrap_or_default();
    if apart > SKEW_MAX {
        return broken_promise(format!("its clock and this machine's are {} seconds apart", apart.as_secs()));
    }
    Ok(())
}

fn check_delete(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("list/a")?;
    trial.store.delete_object(&key)?;
    expect_not_found(trial.store.get_object(&key, 9))
}

fn check_delete_missing(trial: &PromiseTrial<'_>) -> PromiseResult {
    Ok(trial.store.delete_object(&trial.object_key("missing")?)?)
}

fn check_list_deleted(trial: &PromiseTrial<'_>) -> PromiseResult {
    let key = trial.object_key("list/b")?;
    // Not the object of the check before: a listing that lags behind may know of that deletion by now.
    trial.store.delete_object(&key)?;
    let listed = trial.store.list_objects(&trial.keys.folder)?;
    if listed.iter().any(|info| info.key == key) {
        broken_promise("it lists what was just deleted")
    } else {
        Ok(())
    }
}
