//! Benches of a directory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use vellum_bench::filesystem::{self, FilesystemBenchParameters};
use vellum_bench::{BenchError, BenchReport};
use vellum_host::ProgressMeter;
use vellum_types::ErrorKind;

/// Everything, as small as it goes.
const SMALL: FilesystemBenchParameters = FilesystemBenchParameters {
    threads: 2,
    big_file_size: (1 << 20) + 1000,
    small_file_size: 5000,
    small_file_count: 10,
    io_size: 64 << 10,
    runs: 2,
};

fn measure(path: &Path, parameters: &FilesystemBenchParameters) -> vellum_bench::Result<BenchReport> {
    filesystem::run_filesystem_bench(path, parameters, &ProgressMeter::default())
}

fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).unwrap().next().is_none()
}

/// A mounted filesystem of the test's own.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn tmpfs(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success());
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn every_row_has_a_figure_of_every_run_and_nothing_stays() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mine"), "mine").unwrap();
    let report = measure(dir.path(), &SMALL).unwrap();
    let names: Vec<_> = report.rows.iter().map(|row| row.name.as_str()).collect();
    let expected = [
        "big write",
        "big write, flushed",
        "big read, cold",
        "big read, warm",
        "small write",
        "small read, cold",
        "small read, warm",
        "stat",
        "create",
        "mkdir",
        "rename",
        "readdir",
        "unlink",
        "rmdir",
        "fsync",
    ];
    assert_eq!(names, expected);
    for row in &report.rows {
        assert_eq!(row.runs.len(), 2, "{}", row.name);
        assert!(row.runs.iter().all(|rate| rate.is_finite() && *rate > 0.0), "{row:?}");
    }
    // Handing over comes before flushing, of the same bytes.
    let median = |name: &str| report.find_row(name).unwrap().summarize_runs().unwrap().median;
    assert!(median("big write") >= median("big write, flushed"));
    assert_eq!(report.timelines.len(), 3);
    for curve in &report.timelines {
        // What the curve is drawn of is all that was moved.
        let width = curve.points[1].0 - curve.points[0].0;
        let bytes: f64 = curve.points.iter().map(|(_, rate)| rate * width * f64::from(1 << 20)).sum();
        assert!((bytes - 2.0 * SMALL.big_file_size as f64).abs() < 1.0, "{}: {bytes}", curve.name);
    }
    assert_eq!(report.scaling.len(), 2);
    assert!(report.rows.iter().filter(|row| row.graded.is_some()).count() >= 13);
    assert_eq!(report.target["path"], dir.path().display().to_string());
    assert!(report.target.contains_key("filesystem"));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}

#[test]
fn sizes_of_zero_leave_parts_out() {
    let dir = tempfile::tempdir().unwrap();
    let small = measure(dir.path(), &FilesystemBenchParameters { big_file_size: 0, ..SMALL }).unwrap();
    assert!(
        small.find_row("big write").is_none()
            && small.find_row("stat").is_some()
            && small.timelines.is_empty()
    );
    let big = measure(dir.path(), &FilesystemBenchParameters { small_file_count: 0, ..SMALL }).unwrap();
    assert!(big.find_row("big write").is_some() && big.find_row("stat").is_none());
    let bytes = measure(
        dir.path(),
        &FilesystemBenchParameters { small_file_size: 0, io_size: 1, big_file_size: 3, ..SMALL },
    );
    assert!(bytes.unwrap().find_row("small write").is_some());
}

#[test]
fn numbers_that_make_no_sense_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = [
        FilesystemBenchParameters { threads: 0, ..SMALL },
        FilesystemBenchParameters { threads: 100_000, ..SMALL },
        FilesystemBenchParameters { io_size: 0, ..SMALL },
        FilesystemBenchParameters { runs: 0, ..SMALL },
        FilesystemBenchParameters { small_file_count: u64::MAX, ..SMALL },
        FilesystemBenchParameters { big_file_size: 0, small_file_count: 0, ..SMALL },
    ];
    for parameters in wrong {
        assert_eq!(measure(dir.path(), &parameters).unwrap_err().kind(), ErrorKind::Usage, "{parameters:?}");
    }
    let too_much =
        measure(dir.path(), &FilesystemBenchParameters { big_file_size: u64::MAX / 4, ..SMALL }).unwrap_err();
    assert_eq!(too_much.kind(), ErrorKind::NoSpace);
    assert!(is_empty(dir.path()));
}

#[test]
fn a_path_that_is_missing_or_no_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let error = measure(&missing, &SMALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("missing"), "{error}");
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(measure(&file, &SMALL).is_err());
    assert_eq!(fs::read_to_string(file).unwrap(), "x");
}

#[test]
fn a_full_disk_and_a_read_only_one_are_told_apart_and_left_as_they_were() {
    let disk = Mounted::tmpfs("size=24m,nr_inodes=30");
    // The bytes fit, and the names do not.
    let error =
        measure(disk.0.path(), &FilesystemBenchParameters { small_file_count: 100, ..SMALL }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(is_empty(disk.0.path()));
    let error =
        measure(disk.0.path(), &FilesystemBenchParameters { big_file_size: 1 << 30, ..SMALL }).unwrap_err();
    assert!(matches!(error, BenchError::Space { .. }), "{error}");
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.0.path()).status().unwrap();
    assert!(remounted.success());
    for big_file_size in [SMALL.big_file_size, 1 << 30] {
        let error =
            measure(disk.0.path(), &FilesystemBenchParameters { big_file_size, ..SMALL }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

#[test]
fn stopped_at_any_step_it_removes_what_it_made() {
    let dir = tempfile::tempdir().unwrap();
    // Some steps of every part; the meter counts each.
    for step in [1, 7, 20, 60, 90, 130, 170, 230] {
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
            filesystem::run_filesystem_bench(
                dir.path(),
                &FilesystemBenchParameters { runs: 1000, ..SMALL },
                &meter,
            )
        });
        assert!(matches!(stopped, Err(BenchError::Interrupted)), "{stopped:?}");
        assert!(is_empty(dir.path()), "stopped at step {step}");
    }
}
