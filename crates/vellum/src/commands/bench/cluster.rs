//! `vellum bench cluster`: many hosts that do the same work at once on one directory, and report as one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vellum_bench::cluster::figures::ClusterBenchFigures;
use vellum_bench::cluster::message::ClusterBenchSizes;
use vellum_bench::cluster::{
    self, ClusterBenchHost, ClusterBenchParameters, ClusterBenchReport, ClusterWorkload, run_cluster_worker,
};
use vellum_host::ProgressMeter;
use vellum_sync::ends::remote::{RemoteAddress, RemoteShell};

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result, ResumeHint};
use crate::interrupt;
use crate::ui::figures::format_figure;
use crate::ui::format::parse_size;
use crate::ui::progress::ProgressTask;
use crate::ui::table::TextTable;

/// The name of this machine, which needs no connection.
const THIS_MACHINE: &str = "localhost";
/// How a host is typed.
const HINT: &str = "vellum bench cluster --host HOST1 --host HOST2=DIR DIR";

/// Measure a directory that many hosts share: all work on it at once, and report as one
///
/// Starts a worker on each host, over ssh or with another COMMAND: '-e "ip netns exec" --host h1' runs 'ip netns exec h1
/// vellum …'. All begin at the same moment, in a directory of their own in DIR, which is removed in any case. Latencies are
/// those of all operations of all hosts. A host that is lost meanwhile is named, and the others go on; exit code 1 then, and
/// if operations failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, on the hosts
    #[arg(value_name = "DIR")]
    dir: Option<String>,
    /// A host that takes part (can be repeated), and the directory there if it has another name; 'localhost' is this machine
    #[arg(long = "host", value_name = "HOST[=DIR]")]
    hosts: Vec<String>,
    /// Connect to hosts with COMMAND [default: ssh]
    #[arg(short = 'e', long, value_name = "COMMAND")]
    rsh: Option<OsString>,
    /// The program to run on the hosts, which must have the version of this one [default: vellum]
    #[arg(long, value_name = "PROGRAM")]
    remote_program: Option<OsString>,
    /// What is done: create, create-one-dir, create-empty, create-empty-one-dir, read-cold, read, stat, mix, big-write,
    /// big-read, append, lock [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    workloads: Vec<ClusterWorkload>,
    /// Number of threads of each host
    #[arg(short = 'p', long, value_name = "N", default_value_t = 4)]
    threads: usize,
    /// Bytes of each small file
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = parse_size)]
    small_file_size: u64,
    /// Number of small files, and of empty files, of each thread
    #[arg(long, value_name = "N", default_value_t = 100)]
    small_file_count: u64,
    /// Bytes of each thread's large file
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    big_file_size: u64,
    /// Bytes of one read or write
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    io_size: u64,
    /// Number of records that each thread appends, and of locks that each host takes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    operations: u64,
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: u64,
    /// Be a worker, on standard input and output
    // A bench starts it on each host, and nobody types it.
    #[arg(long, hide = true)]
    worker: bool,
}

/// Measures, or works for a bench elsewhere.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    if args.worker {
        return work();
    }
    let hosts = args.name_hosts(context)?;
    let parameters = ClusterBenchParameters {
        sizes: ClusterBenchSizes {
            threads: args.threads,
            small_file_size: args.small_file_size,
            small_file_count: args.small_file_count,
            big_file_size: args.big_file_size,
            io_size: args.io_size,
            operations: args.operations,
        },
        workloads: match args.workloads.as_slice() {
            [] => ClusterWorkload::ALL.to_vec(),
            chosen => chosen.to_vec(),
        },
        runs: args.runs,
    };
    let task = ProgressTask { first: "Measuring", verb: "Measuring", item: "workload" };
    let report = context
        .run_with_progress(task, |meter| cluster::run_cluster_bench(&hosts, &parameters, meter))
        .with_resume_hint(super::REMOVED)?;
    print_report(context, &report)?;
    Ok(CommandOutcome::from_findings(report.has_problems()))
}

/// Works until the bench that started this has enough.
fn work() -> Result<CommandOutcome> {
    // Copies of the descriptors, past the buffers of the standard streams: the protocol has its own.
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let input = own(std::io::stdin().as_fd()).map_err(CliError::io_error("use", "standard input"))?;
    let output = own(std::io::stdout().as_fd()).map_err(CliError::io_error("use", "standard output"))?;
    let meter = Arc::new(ProgressMeter::default());
    let stopping = Arc::clone(&meter);
    // A Ctrl-C on a terminal reaches the workers of this machine, too; the bench then tells one of them to remove what
    // was made.
    let flag = interrupt::install_signal_handlers();
    std::thread::spawn(move || {
        while !interrupt::is_stop_requested(&flag) {
            std::thread::sleep(Duration::from_millis(50));
        }
        stopping.request_stop();
    });
    run_cluster_worker(std::fs::File::from(input), std::fs::File::from(output), &meter);
    Ok(CommandOutcome::Done)
}

impl Args {
    fn name_hosts(&self, context: &CommandContext) -> Result<Vec<ClusterBenchHost>> {
        if self.hosts.is_empty() {
            return Err(CliError::usage_error("no host was named", HINT));
        }
        let mut named = HashMap::new();
        self.hosts
            .iter()
            .map(|typed| {
                let mut host = self.parse_host(typed, context)?;
                // Several workers may be on one host; each has a name of its own.
                let count = named.entry(host.name.clone()).and_modify(|count| *count += 1).or_insert(1);
                if *count > 1 {
                    host.name = format!("{} ({count})", host.name);
                }
                Ok(host)
            })
            .collect()
    }

    fn parse_host(&self, typed: &str, context: &CommandContext) -> Result<ClusterBenchHost> {
        let (name, dir) = match typed.split_once('=') {
            Some((name, dir)) => (name, Some(dir.to_owned())),
            None => (typed, self.dir.clone()),
        };
        let Some(mut dir) = dir.filter(|dir| !dir.is_empty()) else {
            return Err(CliError::usage_error(format!("no directory was named for the host '{name}'"), HINT));
        };
        let worker = ["bench", "cluster", "--worker"].map(OsString::from);
        let mut command = Vec::new();
        if name == THIS_MACHINE {
            let program = std::env::current_exe().map_err(CliError::io_error("find", "this program"))?;
            // This very program, because the one that a shell would find may be another version.
            command.push(program.into_os_string());
            // The worker gets an absolute path: it is told it through the connection, and not by where it stands.
            dir = context.resolve_local_path(Path::new(&dir)).display().to_string();
        } else {
            let address = match RemoteAddress::parse(format!("{name}:").as_bytes()) {
                Some(Ok(address)) => address,
                Some(Err(error)) => return Err(CliError::usage_error(error.to_string(), HINT)),
                None => return Err(CliError::usage_error(format!("'{name}' is not a host name"), HINT)),
            };
            let shell = self.remote_shell()?;
            command.extend(shell.words);
            command.push(address.host.into());
            command.push(shell.program);
        }
        command.extend(worker);
        Ok(ClusterBenchHost { name: name.to_owned(), command, dir })
    }

    /// As `vellum sync` has it.
    fn remote_shell(&self) -> Result<RemoteShell> {
        let mut shell = RemoteShell::default();
        let typed = self.rsh.clone().or_else(|| std::env::var_os("VELLUM_RSH"));
        if let Some(typed) = typed.as_deref().map(OsStr::as_bytes) {
            shell.words = RemoteShell::parse_words(typed)
                .map_err(|error| CliError::usage_error(error.to_string(), HINT))?;
        }
        if let Some(program) = &self.remote_program {
            shell.program.clone_from(program);
        }
        Ok(shell)
    }
}

fn print_report(context: &CommandContext, report: &ClusterBenchReport) -> Result<()> {
    let ui = &context.ui;
    if ui.is_json() {
        return ui.print_json(report);
    }
    let mut table = TextTable::new([1, 2, 3, 4, 5, 6, 7]);
    table.add_row(["", "op/s", "MiB/s", "p50 ms", "p95", "p99", "max", "errors"].map(String::from));
    for workload in &report.workloads {
        table.add_row(figure_cells(workload.row.to_owned(), &workload.whole));
        for of_host in &workload.hosts {
            table.add_row(figure_cells(format!("  {}", of_host.host), &of_host.figures));
        }
    }
    ui.print_lines(table.format_lines())?;
    for workload in &report.workloads {
        if let Some(error) = &workload.whole.first_error {
            ui.print_warning(format!(
                "{}: {} operations failed: {error}",
                workload.row, workload.whole.errors
            ))?;
        }
    }
    for host in &report.hosts {
        if let Some(reason) = &host.lost {
            ui.print_warning(format!("the host {} was lost: {reason}", host.host))?;
        }
    }
    Ok(())
}

fn figure_cells(name: String, figures: &ClusterBenchFigures) -> [String; 8] {
    let latency = figures.latency_ms;
    let times = [latency.p50, latency.p95, latency.p99, latency.max].map(format_figure);
    let [p50, p95, p99, max] = times;
    let moved = if figures.bytes == 0 { String::new() } else { format_figure(figures.mib_per_second) };
    let errors = if figures.errors == 0 { String::new() } else { figures.errors.to_string() };
    [name, format_figure(figures.operations_per_second), moved, p50, p95, p99, max, errors]
}
