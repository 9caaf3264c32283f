//! Many hosts that do the same work at once on one directory, and report as one.
//!
//! A worker on each host is started by a command (ssh, or what enters a namespace) and told what to do on its standard
//! input. All begin at one moment, by clocks that were compared before. Invariant: what the bench made is removed, also if
//! the user stops it or a host is lost; a host that is lost is named, and what the others did is still reported.
//!
//! Deliberately absent: what reaches a host (see [`ClusterBenchHost`]), and how the directory comes to be the same on all
//! hosts.

pub mod figures;
mod host;
pub mod message;
mod operations;
mod records;
mod worker;
mod workload;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use vellum_host::ProgressMeter;

use self::figures::{FigureSum, HostFigures, WorkloadFigures};
pub use self::host::ClusterBenchHost;
use self::host::{HostWorker, NoReply};
use self::message::{
    ClusterBenchSizes, JoinRequest, WorkerCommand, WorkerReply, WorkloadSample, WorkloadStep,
};
pub use self::worker::run_cluster_worker;
pub use self::workload::ClusterWorkload;
use crate::error::{BenchError, Result, check_interrupted};
use crate::report::BenchReport;
use crate::thread_group::THREADS_MAX;

/// The version that all hosts must have.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Most hosts, each with a connection of its own.
const HOSTS_MAX: usize = 256;
/// Most runs: the report keeps every figure.
const RUNS_MAX: u64 = 1000;
/// Most files and records of all hosts in one workload.
const FILES_MAX: u64 = 100_000_000;
/// Largest read or write, and largest small file, bytes.
const IO_MAX: u64 = 1 << 30;
/// How often a worker says that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// A host of which nothing is heard for so long is lost. A machine that is only busy says something earlier.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Hosts begin so long after they were told, beside the way to the farthest of them.
const HEADSTART: Duration = Duration::from_millis(50);

/// The numbers of one bench.
#[derive(Debug, Clone)]
pub struct ClusterBenchParameters {
    /// Sizes and counts of each host.
    pub sizes: ClusterBenchSizes,
    /// What is done. The order is always that of [`ClusterWorkload::ALL`].
    pub workloads: Vec<ClusterWorkload>,
    /// How often everything is done.
    pub runs: u64,
}

/// A host, and whether it took part to the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostOutcome {
    /// Its name.
    pub host: String,
    /// The directory there.
    pub directory: String,
    /// Why it was lost, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// What all hosts did.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterBenchReport {
    /// As of every bench: a row for each workload, with the rate of all hosts in each run.
    #[serde(flatten)]
    pub report: BenchReport,
    /// The hosts.
    pub hosts: Vec<HostOutcome>,
    /// The workloads, with latencies, for all hosts and each.
    pub workloads: Vec<WorkloadFigures>,
}

impl ClusterBenchReport {
    /// Whether an operation failed or a host was lost.
    #[must_use]
    pub fn has_problems(&self) -> bool {
        self.hosts.iter().any(|host| host.lost.is_some())
            || self.workloads.iter().any(|workload| workload.whole.errors > 0)
    }
}

impl ClusterBenchParameters {
    /// Refuses numbers that make no sense.
    fn validate(&self, hosts: usize) -> Result<()> {
        let ClusterBenchSizes {
            threads,
            small_file_size,
            small_file_count,
            big_file_size,
            io_size,
            operations,
            ..
        } = self.sizes;
        let everyone = (threads as u64).saturating_mul(hosts as u64);
        let needs_big_files = self.workloads.iter().any(|workload| workload.is_measured_in_bytes());
        let wrong = if !(1..=HOSTS_MAX).contains(&hosts) {
            format!("a cluster bench has 1 to {HOSTS_MAX} hosts, not {hosts}")
        } else if !(1..=THREADS_MAX).contains(&threads) {
            format!("a host has 1 to {THREADS_MAX} threads, not {threads}")
        } else if !(1..=IO_MAX).contains(&io_size) || small_file_size > IO_MAX {
            "reads, writes and small files have 1 GiB at most, and reads and writes at least a byte".into()
        } else if !(1..=RUNS_MAX).contains(&self.runs) {
            format!("a bench runs 1 to {RUNS_MAX} times, not {}", self.runs)
        } else if everyone.saturating_mul(small_file_count.max(operations)) > FILES_MAX {
            format!("all hosts together have {FILES_MAX} files and records at most")
        } else if self.workloads.is_empty() || small_file_count == 0 || operations == 0 {
            "without workloads, files and operations there is nothing to measure".into()
        } else if needs_big_files && big_file_size == 0 {
            "large files of 0 bytes cannot be measured: leave out big-write and big-read".into()
        } else {
            return Ok(());
        };
        Err(BenchError::Parameter(wrong))
    }

    /// What is done in each run, and whether its figures are wanted: reads need files that were written.
    fn steps(&self) -> Vec<PlannedWorkload> {
        let is_chosen = |workload| self.workloads.contains(&workload);
        let is_needed =
            // A workload that is only needed is done, and does not appear in the report.
            |workload| self.workloads.iter().any(|chosen| chosen.required_workload() == Some(workload));
        let plan = |workload| PlannedWorkload { workload, is_reported: is_chosen(workload) };
        ClusterWorkload::ALL
            .into_iter()
            .filter(|workload| is_chosen(*workload) || is_needed(*workload))
            .map(plan)
            .collect()
    }

    /// Bytes that are on the disk at once.
    fn required_space(&self, hosts: usize) -> u64 {
        let sizes = self.sizes;
        let small = sizes.small_file_size.saturating_mul(sizes.small_file_count);
        // All steps of a run together: files stay until the run ends, since later workloads read those of earlier ones.
        let bytes = self.steps().into_iter().map(|step| match step.workload {
            ClusterWorkload::Create | ClusterWorkload::CreateOneDir | ClusterWorkload::Mix => small,
            ClusterWorkload::BigWrite => sizes.big_file_size,
            ClusterWorkload::Append => sizes.operations.saturating_mul(records::RECORD_LEN as u64),
            ClusterWorkload::CreateEmpty
            | ClusterWorkload::CreateEmptyOneDir
            | ClusterWorkload::ReadCold
            | ClusterWorkload::Read
            | ClusterWorkload::Stat
            | ClusterWorkload::BigRead
            | ClusterWorkload::Lock => 0,
        });
        let threads = (sizes.threads as u64).saturating_mul(hosts as u64);
        bytes.fold(0, u64::saturating_add).saturating_mul(threads)
    }

    fn listed(&self, hosts: usize) -> [(&'static str, u64); 8] {
        let sizes = self.sizes;
        [
            ("hosts", hosts as u64),
            ("threads", sizes.threads as u64),
            ("small_file_size", sizes.small_file_size),
            ("small_file_count", sizes.small_file_count),
            ("big_file_size", sizes.big_file_size),
            ("io_size", sizes.io_size),
            ("operations", sizes.operations),
            ("runs", self.runs),
        ]
    }
}

/// A workload of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlannedWorkload {
    workload: ClusterWorkload,
    is_reported: bool,
}

/// What was added up of one workload.
struct WorkloadSum {
    workload: ClusterWorkload,
    whole: FigureSum,
    /// Of each host that has measured it at least once.
    hosts: BTreeMap<usize, FigureSum>,
}

/// Has all hosts do the work.
pub fn run_cluster_bench(
    hosts: &[ClusterBenchHost],
    parameters: &ClusterBenchParameters,
    meter: &ProgressMeter,
) -> Result<ClusterBenchReport> {
    parameters.validate(hosts.len())?;
    let steps = parameters.steps();
    meter.set_expected_total((steps.len() as u64).saturating_mul(parameters.runs), 0);
    let mut session = ClusterSession::start(hosts, parameters, meter)?;
    let target = std::mem::take(&mut session.target);
    let mut report = BenchReport::new("cluster", target, &parameters.listed(hosts.len()));
    let mut sums = Vec::new();
    for run in 0..parameters.runs {
        for step in &steps {
            let measured = session.measure(step.workload, run)?;
            meter.add_progress(1, 0);
            if let Some(measured) = measured.filter(|_| step.is_reported) {
                add_row(&mut report, step.workload, &measured.whole);
                add_measured(&mut sums, measured);
            }
        }
        // Each run begins with an empty directory: creating among the files of the run before is another workload.
        session.ask_first(&WorkerCommand::Clear)?;
    }
    // Not left to the drop of the session, which could not report a failure.
    session.remove_directory()?;
    Ok(session.finish(report, sums))
}

fn add_row(report: &mut BenchReport, workload: ClusterWorkload, whole: &FigureSum) {
    let figures = whole.to_figures();
    // These are rates already: `add_rate` gets the amount of 1 second.
    match workload.is_measured_in_bytes() {
        true => report.add_rate(workload.row_name(), "MiB/s", figures.mib_per_second, 1.0),
        false => report.add_rate(workload.row_name(), "op/s", figures.operations_per_second, 1.0),
    }
}

fn add_measured(sums: &mut Vec<WorkloadSum>, measured: WorkloadSum) {
    let Some(sum) = sums.iter_mut().find(|sum| sum.workload == measured.workload) else {
        sums.push(measured);
        return;
    };
    sum.whole.add(&measured.whole);
    for (host, more) in measured.hosts {
        sum.hosts.entry(host).or_default().add(&more);
    }
}

/// The workers of all hosts, which have joined.
struct ClusterSession<'a> {
    origin: Instant,
    workers: Vec<HostWorker>,
    target: BTreeMap<String, String>,
    meter: &'a ProgressMeter,
    /// How the directory of the bench is to be opened, while there is one.
    made: Option<JoinRequest>,
}

impl<'a> ClusterSession<'a> {
    /// Starts all workers. A host that cannot take part from the beginning is an error: something was mistyped.
    fn start(
        hosts: &[ClusterBenchHost],
        parameters: &ClusterBenchParameters,
        meter: &'a ProgressMeter,
    ) -> Result<Self> {
        // All are started before the first is greeted, so that connections are made side by side.
        let workers = hosts.iter().map(HostWorker::start).collect::<Result<Vec<_>>>()?;
        let target = BTreeMap::new();
        let mut session = Self { origin: Instant::now(), workers, target, meter, made: None };
        for worker in &mut session.workers {
            worker.greet(session.origin, meter)?;
        }
        let space = parameters.required_space(hosts.len());
        for (host, worker) in session.workers.iter_mut().enumerate() {
            let dir = worker.host.dir.clone();
            let name = session.made.as_ref().and_then(|made| made.name.clone());
            let request = JoinRequest { host, dir, name, space, sizes: parameters.sizes };
            let (name, target) = worker.join(request.clone(), meter)?;
            // The first host makes the directory, and the others prove by finding it that they look at the same filesystem.
            if session.made.is_none() {
                session.target = target;
                session.made = Some(JoinRequest { name: Some(name), ..request });
            }
        }
        Ok(session)
    }

    /// The numbers of the hosts that take part.
    fn taking_part(&self) -> Vec<usize> {
        let all = self.workers.iter().enumerate();
        all.filter(|(_, worker)| worker.lost.is_none()).map(|(host, _)| host).collect()
    }

    /// Has all hosts do a workload. None if no host is left.
    fn measure(&mut self, workload: ClusterWorkload, run: u64) -> Result<Option<WorkloadSum>> {
        let hosts = self.taking_part();
        for (rank, host) in hosts.iter().enumerate() {
            // Each reads what the next one has written, so that nothing comes from its own caches.
            let source = hosts.get((rank + 1) % hosts.len()).copied().unwrap_or(*host);
            let step = WorkloadStep { workload, run, source, rank, ranks: hosts.len() };
            if let Some(worker) = self.workers.get_mut(*host) {
                // To all before the first reply is waited for: they prepare side by side.
                worker.send(&WorkerCommand::Prepare(step));
            }
        }
        self.await_all(&hosts, |_, reply| matches!(reply, WorkerReply::Done))?;
        // Asked again: some may have been lost while they prepared.
        let hosts = self.taking_part();
        let way = hosts.iter().filter_map(|host| self.workers.get(*host)).map(HostWorker::round_trip).max();
        // Later than the slowest host can get it, so that all begin at this moment and not when it arrives.
        let at = self.origin.elapsed() + HEADSTART + way.unwrap_or_default();
        for host in &hosts {
            if let Some(worker) = self.workers.get_mut(*host) {
                let at = worker.to_worker_clock(at);
                worker.send(&WorkerCommand::Start { at });
            }
        }
        let mut samples = BTreeMap::new();
        self.await_all(&hosts, |host, reply| match reply {
            WorkerReply::Measured(sample) => samples.insert(host, *sample).is_none(),
            _ => false,
        })?;
        let mut measured = self.add_samples(workload, samples);
        if let Some(measured) = measured.as_mut().filter(|_| workload == ClusterWorkload::Append) {
            self.check_appended(run, &mut measured.whole)?;
        }
        Ok(measured)
    }

    /// Waits for the reply of each host. One that says something else than what `accept` takes is excluded.
    fn await_all(
        &mut self,
        hosts: &[usize],
        mut accept: impl FnMut(usize, WorkerReply) -> bool,
    ) -> Result<()> {
        for host in hosts {
            // One after the other: the slowest host decides in any order, and replies of the others wait meanwhile.
            let Some(worker) = self.workers.get_mut(*host) else { continue };
            match worker.await_reply(self.meter) {
                Ok((_, reply)) => {
                    let shown = format!("it said {reply:?}, which was not expected");
                    if !accept(*host, reply) {
                        worker.give_up(shown);
                    }
                }
                Err(NoReply::Stopped) => return Err(BenchError::Interrupted),
                Err(NoReply::Lost) => {}
            }
        }
        check_interrupted(self.meter)
    }

    fn add_samples(
        &mut self,
        workload: ClusterWorkload,
        samples: BTreeMap<usize, WorkloadSample>,
    ) -> Option<WorkloadSum> {
        let mut sum = WorkloadSum { workload, whole: FigureSum::default(), hosts: BTreeMap::new() };
        let mut begin = f64::INFINITY;
        let mut end = f64::NEG_INFINITY;
        for (host, sample) in samples {
            let Some(worker) = self.workers.get_mut(host) else { continue };
            let Some(latencies) = sample.read_latencies() else {
                worker.give_up("its figures contradict each other".into());
                continue;
            };
            let own = FigureSum {
                latencies,
                operations: sample.operations,
                bytes: sample.bytes,
                errors: sample.errors,
                first_error: sample.first_error,
                longest: Duration::from_nanos(sample.longest),
                // Hosts work at once, so that their times do not add up to that of the whole.
                seconds: 0.0,
            };
            sum.whole.add(&own);
            // Threads that had nothing to do have no time.
            let seconds = (sample.end - sample.begin) as f64 / 1e9;
            sum.hosts.insert(host, FigureSum { seconds, ..own });
            // By one clock: the whole has the time from the first operation of any host to the last of any.
            begin = begin.min(worker.to_bench_seconds(sample.begin));
            end = end.max(worker.to_bench_seconds(sample.end));
        }
        sum.whole.seconds = (end - begin).max(0.0);
        (!sum.hosts.is_empty()).then_some(sum)
    }

    /// Compares what is in the file with what was acknowledged. Hosts that were lost may have appended more.
    fn check_appended(&mut self, run: u64, whole: &mut FigureSum) -> Result<()> {
        match self.ask_first(&WorkerCommand::CountAppended { run })? {
            Some(WorkerReply::Appended { records, damaged }) => {
                let missing = whole.operations.saturating_sub(records);
                if missing > 0 || damaged {
                    // At least 1: damage without a missing record is a failure, too.
                    whole.errors = whole.errors.saturating_add(missing.max(1));
                    let what =
                        format!("of {} records that were appended, {missing} are missing", whole.operations);
                    let torn = if damaged { "; others are torn, or there twice" } else { "" };
                    whole.first_error.get_or_insert(format!("{what}{torn}"));
                }
            }
            Some(_) | None => {
                whole.errors = whole.errors.saturating_add(1);
                whole.first_error.get_or_insert("the appended records could not be counted".into());
            }
        }
        Ok(())
    }

    /// Asks the first host that is left; the next one, if it is lost over it.
    fn ask_first(&mut self, command: &WorkerCommand) -> Result<Option<WorkerReply>> {
        for worker in self.workers.iter_mut().filter(|worker| worker.lost.is_none()) {
            match worker.ask(command, self.meter) {
                Ok((_, reply)) => return Ok(Some(reply)),
                Err(NoReply::Stopped) => return Err(BenchError::Interrupted),
                Err(NoReply::Lost) => {}
            }
        }
        Ok(None)
    }

    /// Removes the directory of the bench, and reports a failure.
    fn remove_directory(&mut self) -> Result<()> {
        let done = self.ask_first(&WorkerCommand::Remove)?;
        if matches!(done, Some(WorkerReply::Done)) {
            self.made = None;
            return Ok(());
        }
        self.remove_after_failure()
    }

    /// Stops all workers, and has one of them remove the directory. If none is left that hears it, as after Ctrl-C, which
    /// ends ssh, too, hosts are connected to anew.
    fn remove_after_failure(&mut self) -> Result<()> {
        // Taken out, so that dropping the session does not try it once more.
        let Some(made) = self.made.take() else { return Ok(()) };
        for worker in &mut self.workers {
            // Whatever still writes would make files behind the removal.
            worker.send(&WorkerCommand::Stop);
        }
        if self.workers.iter_mut().any(HostWorker::remove_after_failure) {
            return Ok(());
        }
        self.workers.iter_mut().for_each(HostWorker::close);
        // Not the meter of the bench: the user may have stopped that one.
        let meter = ProgressMeter::default();
        let mut failure = None;
        for worker in &self.workers {
            let connect = || {
                let mut fresh = HostWorker::start(&worker.host)?;
                // A worker greets before anything else. Its clock is of no use here.
                fresh.greet(Instant::now(), &meter)?;
                fresh.join(JoinRequest { dir: worker.host.dir.clone(), ..made.clone() }, &meter)?;
                Ok(fresh.remove_after_failure())
            };
            match connect() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => failure = Some(error),
            }
        }
        let name = made.name.unwrap_or_default();
        Err(failure.unwrap_or(BenchError::NotEmpty(name)))
    }

    fn finish(self, report: BenchReport, sums: Vec<WorkloadSum>) -> ClusterBenchReport {
        let name = |host: &usize| self.workers.get(*host).map(|worker| worker.host.name.clone());
        let of_host = |(host, sum): (&usize, &FigureSum)| {
            Some(HostFigures { host: name(host)?, figures: sum.to_figures() })
        };
        let workloads = sums.iter().map(|sum| WorkloadFigures {
            workload: sum.workload,
            row: sum.workload.row_name(),
            whole: sum.whole.to_figures(),
            hosts: sum.hosts.iter().filter_map(of_host).collect(),
        });
        let workloads = workloads.collect();
        let hosts = self.workers.iter().map(|worker| HostOutcome {
            host: worker.host.name.clone(),
            directory: worker.host.dir.clone(),
            lost: worker.lost.clone(),
        });
        ClusterBenchReport { report, hosts: hosts.collect(), workloads }
    }
}

impl Drop for ClusterSession<'_> {
    fn drop(&mut self) {
        // The bench has failed already, and reports why.
        let _ = self.remove_after_failure();
        // All at once, so that they do not wait for each other.
        self.workers.iter_mut().for_each(HostWorker::close);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(workloads: &[ClusterWorkload]) -> ClusterBenchParameters {
        ClusterBenchParameters {
            sizes: ClusterBenchSizes {
                threads: 4,
                small_file_size: 1000,
                small_file_count: 10,
                big_file_size: 50_000,
                io_size: 1 << 20,
                operations: 100,
            },
            workloads: workloads.to_vec(),
            runs: 1,
        }
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let good = parameters(&ClusterWorkload::ALL);
        good.validate(3).unwrap();
        let with = |change: fn(&mut ClusterBenchSizes)| {
            let mut wrong = good.clone();
            change(&mut wrong.sizes);
            wrong.validate(3)
        };
        for refused in [
            good.validate(0),
            good.validate(HOSTS_MAX + 1),
            with(|sizes| sizes.threads = 0),
            with(|sizes| sizes.threads = 5000),
            with(|sizes| sizes.small_file_count = u64::MAX),
            with(|sizes| sizes.operations = 0),
            with(|sizes| sizes.big_file_size = 0),
            with(|sizes| sizes.io_size = 0),
            parameters(&[]).validate(1),
        ] {
            assert!(matches!(refused, Err(BenchError::Parameter(_))), "{refused:?}");
        }
    }

    #[test]
    fn reads_are_of_files_that_were_written_before() {
        let chosen = parameters(&[ClusterWorkload::BigRead, ClusterWorkload::Stat, ClusterWorkload::Create]);
        let steps: Vec<_> = chosen.steps().iter().map(|step| (step.workload, step.is_reported)).collect();
        assert_eq!(
            steps,
            [
                (ClusterWorkload::Create, true),
                (ClusterWorkload::Stat, true),
                (ClusterWorkload::BigWrite, false),
                (ClusterWorkload::BigRead, true)
            ]
        );
        assert_eq!(chosen.required_space(2), 2 * 4 * (10 * 1000 + 50_000));
    }
}
