//! The page of a report in a browser.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vellum_bench::filesystem::{self, FilesystemBenchParameters};
use vellum_bench::html;
use vellum_host::ProgressMeter;

/// How long a browser may take on a machine that does other things: far longer than any has taken.
const PATIENCE: Duration = Duration::from_secs(180);

/// How often it is started: one that is killed for want of memory says nothing of the page.
const TRIES: usize = 2;

/// A browser, which is killed with the test.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the browser made of a page, and what it said; None if it did not come to its end.
fn dump(page: &Path, home: &Path) -> Option<(String, String)> {
    let out = home.join("out");
    let err = home.join("err");
    let mut browser = Browser(
        Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--enable-logging=stderr", "--virtual-time-budget=1000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", home.join("profile").display()))
            .arg(format!("file://{}", page.display()))
            .env("HOME", home)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&err).unwrap())
            .spawn()
            .expect("chromium is in the PACKAGES of the Makefile"),
    );
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = browser.0.try_wait().unwrap() {
            let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
            return status
                .success()
                .then(|| (read(&out), read(&err)))
                .filter(|(dom, _)| dom.contains("</html>"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

#[test]
fn a_browser_draws_every_mark_and_has_nothing_to_complain_of() {
    let dir = tempfile::tempdir().unwrap();
    let parameters = FilesystemBenchParameters {
        threads: 1,
        big_file_size: 1 << 20,
        small_file_size: 4096,
        small_file_count: 5,
        io_size: 64 << 10,
        runs: 3,
    };
    let report =
        filesystem::run_filesystem_bench(dir.path(), &parameters, &ProgressMeter::default()).unwrap();
    let page = dir.path().join("report.html");
    std::fs::write(&page, html::render_page(&report)).unwrap();
    let (dom, said) = (0..TRIES)
        .find_map(|_| dump(&page, tempfile::tempdir().unwrap().path()))
        .expect("the browser comes to its end");
    let marks = |class: &str| dom.matches(&format!("class=\"{class}\"")).count();
    assert_eq!(marks("box"), report.rows.len());
    assert_eq!(marks("median"), report.rows.len());
    assert_eq!(marks("run"), 3 * report.rows.len());
    assert_eq!(marks("line"), report.timelines.len() + report.scaling.len());
    assert_eq!(report.scaling.len(), 2);
    let points: usize = report.timelines.iter().chain(&report.scaling).map(|curve| curve.points.len()).sum();
    assert_eq!(marks("point"), points);
    let complaints: Vec<_> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
