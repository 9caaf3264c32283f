//! `vellum profile`: what a mount spends its time on, from its access log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use vellum_bench::access::{
    AccessFilter, AccessProfile, AccessSummary, DamagedLine, OperationSummary, RequestedFile, SlowFile,
};
use vellum_host::escape::format_path;

use crate::context::CommandContext;
use crate::error::{CliError, CommandOutcome, Result};
use crate::interrupt;
use crate::ui::changes::list::limit_name_column;
use crate::ui::json::NameJson;
use crate::ui::table::TextTable;
use crate::ui::{UserInterface, format};

/// Show where a mount spends its time: by operation, and the slowest files
///
/// Follows a mount until Ctrl-C, or reads a saved log ('cat MOUNT/.vellum/accesslog > LOGFILE'). The log costs
/// nothing while no process reads it; only one process can read it at a time. Files of a mount are shown by their
/// paths from the mountpoint, those of a saved log by their inode numbers. Exits with 1 if lines of the log are
/// damaged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A mount, or a file with lines of its access log
    #[arg(value_name = "MOUNTPOINT|LOGFILE")]
    from: PathBuf,
    /// Seconds that each table covers; 0: one table for everything [default: 2 for a mount, 0 for a file]
    #[arg(long, value_name = "S", value_parser = parse_interval)]
    interval: Option<f64>,
    /// Count only requests of this user
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Count only requests of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Number of slowest files to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    files: usize,
}

/// Tables of a mount without `--interval`.
const INTERVAL: f64 = 2.0;

/// Longest interval: a day.
const INTERVAL_MAX: f64 = 86_400.0;

/// Longest line, bytes: a name of 255 bytes, escaped, and what stands around it.
const LINE_MAX: u64 = 64 << 10;

const HINT: &str = "name a mountpoint ('vellum mounts' lists them) or a file with lines of an access log";

/// A typed time.
pub fn parse_interval(typed: &str) -> Result<f64, String> {
    let seconds: Option<f64> = typed.parse().ok();
    // The range excludes NaN, too, of which no duration can be made.
    let known = seconds.filter(|seconds| (0.0..=INTERVAL_MAX).contains(seconds));
    known.ok_or_else(|| "write seconds, like 1 or 0.5".into())
}

/// Profiles.
pub fn run(args: &Args, context: &CommandContext) -> Result<CommandOutcome> {
    let path = context.resolve_local_path(&args.from);
    let (log, live) = open_access_log(&path)?;
    let interval = args.interval.unwrap_or(if live { INTERVAL } else { 0.0 });
    // The requests by which it finds paths are not what the mount was used for.
    let except_pid = live.then(std::process::id);
    let filter = AccessFilter { uid: args.uid, pid: args.pid, except_pid };
    let mountpoint = path.is_dir().then(|| path.clone());
    let mut tables = ProfileTables {
        ui: &context.ui,
        profile: AccessProfile::new(filter),
        files: args.files,
        mountpoint,
        damaged: false,
    };
    if live {
        tables.follow_log(log, interval)?;
    } else {
        tables.replay_log(log, interval, &path)?;
    }
    Ok(CommandOutcome::from_findings(tables.damaged))
}

/// The log, and whether it is one of a mount at work.
fn open_access_log(path: &Path) -> Result<(File, bool)> {
    let shown = path.display().to_string();
    let metadata = path.metadata().map_err(CliError::io_error("open", shown.clone()))?;
    if !metadata.is_dir() {
        // The log of a mount is a pipe that its process makes.
        let live = metadata.file_type().is_fifo();
        return Ok((File::open(path).map_err(CliError::io_error("open", shown))?, live));
    }
    let log = path.join(".vellum/accesslog");
    // Only the virtual directory of a mount has a FIFO of this name.
    if !log.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Err(CliError::usage_error(format!("{shown} is not a mount"), HINT));
    }
    Ok((File::open(&log).map_err(CliError::io_error("open", log.display().to_string()))?, true))
}

struct ProfileTables<'a> {
    ui: &'a UserInterface,
    profile: AccessProfile,
    files: usize,
    /// Of the mount that is followed: it knows the paths of its inodes.
    mountpoint: Option<PathBuf>,
    damaged: bool,
}

/// A summary with the paths that are known.
#[derive(Serialize)]
struct ProfileJson<'a> {
    requests: u64,
    operations: &'a [OperationSummary],
    slowest: Vec<SlowFileJson<'a>>,
    dropped: u64,
    damaged: &'a [DamagedLine],
    damaged_lines: u64,
}

#[derive(Serialize)]
struct SlowFileJson<'a> {
    #[serde(flatten)]
    file: &'a SlowFile,
    #[serde(flatten)]
    path: Option<NameJson>,
}

impl ProfileTables<'_> {
    /// A file, to its end; the interval is of the log's own time.
    fn replay_log(&mut self, log: File, interval: f64, path: &Path) -> Result<()> {
        let mut log = BufReader::new(log);
        let mut line = Vec::new();
        let mut end = None;
        loop {
            line.clear();
            // A longer line is read in pieces, each of which counts as damaged.
            let read = (&mut log).take(LINE_MAX).read_until(b'\n', &mut line);
            if read.map_err(CliError::io_error("read", path.display().to_string()))? == 0 {
                break;
            }
            let whole = line.pop_if(|last| *last == b'\n').is_some();
            // A damaged line has no time. It is counted, and reported with its table.
            let Some(time) = self.profile.read_line(&line, whole) else { continue };
            let until = *end.get_or_insert(time + interval);
            if interval > 0.0 && time >= until {
                self.print_interval()?;
                end = Some(time + interval);
            }
        }
        if self.profile.has_no_valid_line() {
            return Err(CliError::usage_error(
                format!("{} has no line of an access log", path.display()),
                HINT,
            ));
        }
        self.print_interval()
    }

    /// A mount, until it ends or the user asks to stop.
    fn follow_log(&mut self, mut log: File, interval: f64) -> Result<()> {
        // Ctrl-C is the usual way to end it, and the last table is still printed.
        let stop_flag = interrupt::install_signal_handlers();
        let every = if interval > 0.0 { interval } else { INTERVAL_MAX };
        let mut next = Instant::now() + Duration::from_secs_f64(every);
        let mut rest = Vec::new();
        // As much as a pipe holds on Linux by default.
        let mut buffer = vec![0; 64 << 10];
        while !interrupt::is_stop_requested(&stop_flag) {
            if wait_for_log_data(&log, next)? {
                match log.read(&mut buffer) {
                    // The writer has closed its end: the mount is gone.
                    Ok(0) => break,
                    Ok(read) => self.read_complete_lines(&mut rest, buffer.get(..read).unwrap_or_default()),
                    // A signal: the loop checks whether it asks to stop.
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(CliError::io_error("read", "the access log")(error)),
                }
            }
            if Instant::now() >= next {
                // Counted from now: after the process was suspended, one table follows, and not one for each
                // interval that was missed.
                next = Instant::now() + Duration::from_secs_f64(every);
                self.print_interval()?;
                self.ui.flush_output()?;
            }
        }
        self.print_interval()
    }

    /// Takes bytes that end anywhere.
    fn read_complete_lines(&mut self, rest: &mut Vec<u8>, bytes: &[u8]) {
        rest.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(line) =
            rest.get(used..).and_then(|rest| rest.split_inclusive(|byte| *byte == b'\n').next())
        {
            // What is left is the beginning of a line whose end comes with the next read.
            let Some(text) = line.strip_suffix(b"\n") else { break };
            self.profile.read_line(text, true);
            used += line.len();
        }
        rest.drain(..used);
    }

    fn print_interval(&mut self) -> Result<()> {
        let summary = self.profile.take_summary(self.files);
        self.damaged |= summary.damaged_lines > 0;
        // Looked up right after the interval, before many of these files are renamed or removed.
        let paths: Vec<_> = summary.slowest.iter().map(|file| self.find_requested_path(file)).collect();
        if self.ui.is_json() {
            let named = summary.slowest.iter().zip(&paths);
            return self.ui.print_json(&ProfileJson {
                requests: summary.requests,
                operations: &summary.operations,
                slowest: named
                    .map(|(file, path)| SlowFileJson { file, path: path.as_deref().map(NameJson::new) })
                    .collect(),
                dropped: summary.dropped,
                damaged: &summary.damaged,
                damaged_lines: summary.damaged_lines,
            });
        }
        print_operations(self.ui, &summary)?;
        print_slowest(self.ui, &summary.slowest, &paths)?;
        print_log_problems(self.ui, &summary)
    }

    /// The path of a file from the mountpoint, if the mount is there, and the file still has one.
    fn find_requested_path(&self, file: &SlowFile) -> Option<Vec<u8>> {
        let RequestedFile { node, name } = RequestedFile::parse_text(&file.about)?;
        let mut path = std::fs::read(self.mountpoint.as_ref()?.join(format!(".vellum/paths/{node}"))).ok()?;
        if let Some(name) = name {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
        }
        Some(path)
    }
}

/// Waits for more to read; whether there is. Comes back early when a signal arrives.
fn wait_for_log_data(log: &File, until: Instant) -> Result<bool> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let mut polled = [PollFd::new(log, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(CliError::io_error("wait for", "the access log")(errno.into())),
    }
}

fn print_operations(ui: &UserInterface, summary: &AccessSummary) -> Result<()> {
    let mut table = TextTable::new(1..8);
    let head = ["operation", "count", "failed", "total", "average", "p50", "p99", "share"];
    table.add_row(head.map(|word| ui.style.paint_dim(word)));
    for operation in &summary.operations {
        table.add_row(operation_cells(operation));
    }
    ui.print_lines(table.format_lines())?;
    Ok(())
}

fn print_slowest(ui: &UserInterface, slowest: &[SlowFile], paths: &[Option<Vec<u8>>]) -> Result<()> {
    if !slowest.is_empty() {
        let mut table = TextTable::with_limit(1..4, limit_name_column(ui.output_columns()));
        let head = ["file", "count", "total", "longest"];
        table.add_row(head.map(|word| ui.style.paint_dim(word)));
        for (file, path) in slowest.iter().zip(paths) {
            let shown = match path.as_deref() {
                Some(b"") => ".".into(),
                Some(path) => format_path(path),
                None => format_path(&file.about),
            };
            table.add_row([
                shown,
                format::format_number(file.count),
                format_seconds(file.total),
                format_seconds(file.longest),
            ]);
        }
        ui.print_lines(table.format_lines())?;
    }
    // The empty line separates the tables of two intervals.
    ui.print_line("")
}

fn print_log_problems(ui: &UserInterface, summary: &AccessSummary) -> Result<()> {
    if summary.dropped > 0 {
        ui.print_warning(format!(
            "lines are missing in {}: the log was read too slowly",
            format::format_count(summary.dropped, "place")
        ))?;
    }
    for damaged in &summary.damaged {
        ui.print_warning(format!(
            "line {} of the log is damaged: {}",
            damaged.line,
            format_path(&damaged.text)
        ))?;
    }
    if summary.damaged_lines > summary.damaged.len() as u64 {
        ui.print_warning(format!(
            "{} are damaged in total",
            format::format_count(summary.damaged_lines, "line")
        ))?;
    }
    Ok(())
}

fn operation_cells(operation: &OperationSummary) -> [String; 8] {
    [
        format_path(&operation.operation),
        format::format_number(operation.count),
        format::format_number(operation.failed),
        format_seconds(operation.total),
        format_seconds(operation.average),
        format_seconds(operation.p50),
        format_seconds(operation.p99),
        format!("{:.1} %", operation.share * 100.0),
    ]
}

/// Seconds as people read them: "12 µs", "3.4 ms", "1.20 s".
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}
