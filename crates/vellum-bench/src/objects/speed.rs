//! How fast a store is: small objects, and big ones in blocks, so many at once.

use std::time::{Duration, Instant};

use vellum_host::ProgressMeter;
use vellum_store::{ObjectKey, ObjectStore};

use super::{BenchKeys, ObjectBenchParameters};
use crate::error::{BenchError, Result, check_interrupted};
use crate::report::{BenchReport, BetterDirection};
use crate::statistics::RunSummary;
use crate::thread_group::{ThreadGroupResult, run_in_threads};

const MIB: f64 = (1 << 20) as f64;

/// Listings that are asked for at once.
const LISTINGS: usize = 100;

/// What is measured.
pub(super) struct SpeedTrial<'a> {
    pub store: &'a dyn ObjectStore,
    pub keys: &'a BenchKeys,
    pub parameters: &'a ObjectBenchParameters,
    pub meter: &'a ProgressMeter,
}

/// All runs.
pub(super) fn run_speed_trial(trial: &SpeedTrial<'_>, report: &mut BenchReport) -> Result<()> {
    for _ in 0..trial.parameters.runs {
        if trial.parameters.small_objects > 0 {
            trial.measure_small_objects(report)?;
        }
        if trial.parameters.big_object_size > 0 {
            trial.measure_big_object(report)?;
        }
    }
    Ok(())
}

impl SpeedTrial<'_> {
    fn measure_small_objects(&self, report: &mut BenchReport) -> Result<()> {
        let count = self.parameters.small_objects;
        let size = self.parameters.small_object_size;
        let bytes = random_bytes(size);
        let mut tell = |name: &str, group: &ThreadGroupResult<Vec<Duration>>| {
            report.add_rate(name, "objects/s", count as f64, group.elapsed_seconds());
            let times: Vec<_> = group.results.iter().flatten().map(Duration::as_secs_f64).collect();
            // A rate hides how long one request takes when many are under way, so that both are told.
            if let Some(summary) = RunSummary::from_figures(&times) {
                report.add_figure(
                    &format!("{name}, time"),
                    "ms",
                    BetterDirection::Lower,
                    summary.median * 1e3,
                );
            }
        };
        tell(
            "put small",
            &self.for_each_object("small", count, |key| Ok(self.store.put_object(key, &bytes)?))?,
        );
        tell(
            "get small",
            &self.for_each_object("small", count, |key| {
                // Compared, so that no store looks fast by giving wrong bytes.
                match self.store.get_object(key, size)? == bytes {
                    true => Ok(()),
                    false => Err(BenchError::Content(self.store.describe_location())),
                }
            })?,
        );
        tell(
            "head",
            &self.for_each_object("small", count, |key| Ok(self.store.object_size(key).map(drop)?))?,
        );
        let start = Instant::now();
        let listed = self.store.list_objects(&self.keys.folder)?;
        let seconds = start.elapsed().as_secs_f64();
        let listings = self.measure_listings()?;
        tell("delete", &self.for_each_object("small", count, |key| Ok(self.store.delete_object(key)?))?);
        // Measured before the deletions, and added only here, since `tell` has borrowed the report until now.
        report.add_rate("list", "objects/s", listed.len() as f64, seconds);
        report.add_rate("list, 100 at once", "listings/s", LISTINGS as f64, listings);
        Ok(())
    }

    /// Lists the folder many times at once. Returns how many seconds all of it took.
    fn measure_listings(&self) -> Result<f64> {
        let listed = run_in_threads(LISTINGS, |_| {
            check_interrupted(self.meter)?;
            self.store.list_objects(&self.keys.folder)?;
            self.meter.add_progress(1, 0);
            Ok(())
        })?;
        Ok(listed.elapsed_seconds())
    }

    fn measure_big_object(&self, report: &mut BenchReport) -> Result<()> {
        let block = self.parameters.block_size.min(self.parameters.big_object_size);
        let count = (self.parameters.big_object_size / block).max(1);
        let bytes = random_bytes(block);
        let mebibytes = (count * block) as f64 / MIB;
        let put = self.for_each_object("big", count, |key| Ok(self.store.put_object(key, &bytes)?))?;
        report.add_rate("put big", "MiB/s", mebibytes, put.elapsed_seconds());
        let get =
            self.for_each_object("big", count, |key| Ok(self.store.get_object(key, block).map(drop)?))?;
        report.add_rate("get big", "MiB/s", mebibytes, get.elapsed_seconds());
        let half = block / 2;
        let range = self.for_each_object("big", count, |key| {
            Ok(self.store.get_range(key, half, block - half).map(drop)?)
        })?;
        report.add_rate("get part", "MiB/s", (count * (block - half)) as f64 / MIB, range.elapsed_seconds());
        self.for_each_object("big", count, |key| Ok(self.store.delete_object(key)?)).map(drop)
    }

    /// Does something with a number of objects, several at once. Returns how long each took.
    fn for_each_object(
        &self,
        stem: &str,
        count: u64,
        work: impl Fn(&ObjectKey) -> Result<()> + Sync,
    ) -> Result<ThreadGroupResult<Vec<Duration>>> {
        let threads = self.parameters.threads;
        run_in_threads(threads, |thread| {
            let mut times = Vec::new();
            // No two threads use the same key, so that they do not wait for each other within the service.
            for number in (thread as u64..count).step_by(threads) {
                check_interrupted(self.meter)?;
                let key = self.keys.object_key(&format!("{stem}-{number}"))?;
                let start = Instant::now();
                work(&key)?;
                times.push(start.elapsed());
                self.meter.add_progress(1, 0);
            }
            Ok(times)
        })
    }
}

/// Bytes that no service can make smaller.
fn random_bytes(len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    // Without random numbers the figures are those of zeros; but `random_name` has failed before that.
    let _ = getrandom::fill(&mut bytes);
    bytes
}
