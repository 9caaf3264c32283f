//! How fast a store is: small objects, and big ones in blocks, so many at once.

use std::time::{Duration, Instant};

use vellum_store::{ObjectKey, ObjectStore};
use vellum_volume::ProgressMeter;

use super::{BenchKeys, ObjectBenchParameters};
use crate::error::{BenchError, Result, go_on};
use crate::gang::{ThreadGroupResult, together};
use crate::report::{BenchReport, BetterDirection};
use crate::statistics::RunSummary;

const MIB: f64 = (1 << 20) as f64;

/// What is measured.
pub(super) struct SpeedTrial<'a> {
    pub store: &'a dyn ObjectStore,
    pub keys: &'a BenchKeys,
    pub parameters: &'a ObjectBenchParameters,
    pub meter: &'a ProgressMeter,
}

/// All runs.
pub(super) fn run(trial: &SpeedTrial<'_>, report: &mut BenchReport) -> Result<()> {
    for _ in 0..trial.parameters.runs {
        if trial.parameters.small_objects > 0 {
            trial.small(report)?;
        }
        if trial.parameters.big_object_size > 0 {
            trial.big(report)?;
        }
    }
    Ok(())
}

impl SpeedTrial<'_> {
    fn small(&self, report: &mut BenchReport) -> Result<()> {
        let (count, size) = (self.parameters.small_objects, self.parameters.small_object_size);
        let bytes = noise(size);
        let mut tell = |name: &str, gang: &ThreadGroupResult<Vec<Duration>>| {
            report.rate(name, "objects/s", count as f64, gang.seconds());
            let times: Vec<_> = gang.results.iter().flatten().map(Duration::as_secs_f64).collect();
            if let Some(summary) = RunSummary::of(&times) {
                report.add(&format!("{name}, time"), "ms", BetterDirection::Lower, summary.median * 1e3);
            }
        };
        tell("put small", &self.each("small", count, |key| Ok(self.store.put(key, &bytes)?))?);
        tell(
            "get small",
            &self.each("small", count, |key| match self.store.get(key, size)? == bytes {
                true => Ok(()),
                false => Err(BenchError::Content(self.store.describe())),
            })?,
        );
        tell("head", &self.each("small", count, |key| Ok(self.store.size(key).map(drop)?))?);
        let start = Instant::now();
        let listed = self.store.list(&self.keys.folder)?;
        let seconds = start.elapsed().as_secs_f64();
        tell("delete", &self.each("small", count, |key| Ok(self.store.delete(key)?))?);
        report.rate("list", "objects/s", listed.len() as f64, seconds);
        Ok(())
    }

    fn big(&self, report: &mut BenchReport) -> Result<()> {
        let block = self.parameters.block_size.min(self.parameters.big_object_size);
        let count = (self.parameters.big_object_size / block).max(1);
        let (bytes, mebibytes) = (noise(block), (count * block) as f64 / MIB);
        let put = self.each("big", count, |key| Ok(self.store.put(key, &bytes)?))?;
        report.rate("put big", "MiB/s", mebibytes, put.seconds());
        let get = self.each("big", count, |key| Ok(self.store.get(key, block).map(drop)?))?;
        report.rate("get big", "MiB/s", mebibytes, get.seconds());
        let half = block / 2;
        let range =
            self.each("big", count, |key| Ok(self.store.get_range(key, half, block - half).map(drop)?))?;
        report.rate("get part", "MiB/s", (count * (block - half)) as f64 / MIB, range.seconds());
        self.each("big", count, |key| Ok(self.store.delete(key)?)).map(drop)
    }

    /// Does something with so many objects, several at once; gives how long each took.
    fn each(
        &self,
        stem: &str,
        count: u64,
        work: impl Fn(&ObjectKey) -> Result<()> + Sync,
    ) -> Result<ThreadGroupResult<Vec<Duration>>> {
        let threads = self.parameters.threads;
        together(threads, |thread| {
            let mut times = Vec::new();
            for number in (thread as u64..count).step_by(threads) {
                go_on(self.meter)?;
                let key = self.keys.key(&format!("{stem}-{number}"))?;
                let start = Instant::now();
                work(&key)?;
                times.push(start.elapsed());
                self.meter.add(1, 0);
            }
            Ok(times)
        })
    }
}

/// Bytes that no service can make smaller.
fn noise(len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    // Without random numbers the figures are those of zeros; `unique` has failed before that.
    let _ = getrandom::fill(&mut bytes);
    bytes
}
