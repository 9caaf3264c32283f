//! Promises of the store: those that a bench of it looks at.

use std::time::Instant;

use vellum_bench::BenchError;
use vellum_bench::objects::{BenchStore, CheckedPromise, ObjectBenchParameters, run_object_bench};
use vellum_host::ProgressMeter;
use vellum_store::StoreLocation;

use super::ground::TrialGround;
use super::{PromiseSubject, TrialStop, TriedPromise};
use crate::error::Result;

/// How these promises are tried.
const HOW: &str = "requests to the store, several at once";

/// Tries what Vellum relies on in a store.
pub fn try_store(ground: &TrialGround, meter: &ProgressMeter) -> Result<Vec<TriedPromise>> {
    let own = || StoreLocation::new(ground.root().join("promises").display().to_string());
    let location = ground.store_folder().cloned().unwrap_or_else(own);
    // What it makes is removed when it is dropped, after a failure as well.
    let container = BenchStore::open_or_create(&location).map_err(BenchError::from)?;
    // Nothing is measured.
    let parameters = ObjectBenchParameters { small_objects: 0, big_object_size: 0, ..Default::default() };
    let start = Instant::now();
    let found = run_object_bench(&*container.store, &parameters, meter)?;
    Ok(found.promises.iter().map(|checked| describe_checked(checked, start)).collect())
}

fn describe_checked(checked: &CheckedPromise, start: Instant) -> TriedPromise {
    let problem = checked.problem.clone().unwrap_or_default();
    let without = checked.consequence.unwrap_or_default();
    let outcome = match (checked.holds, checked.livable) {
        (true, _) => Ok(()),
        (false, true) => {
            Err(TrialStop::Inapplicable(format!("{problem}; Vellum works without it: {without}")))
        }
        (false, false) => Err(TrialStop::Broken(format!("{problem}: {without}"))),
    };
    let tried = TriedPromise::new(PromiseSubject::Store, (checked.promise, HOW), outcome, start);
    TriedPromise { seconds: checked.seconds, ..tried }
}
