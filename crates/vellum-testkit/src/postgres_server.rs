//! A PostgreSQL server.
//!
//! Invariant: it ends when it is dropped, and its directory is removed. It does not run as root, so its directory is
//! one of its own, in the system's directory for temporary files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ports::find_free_port;
use crate::server_process::ServerProcess;
use crate::tls::TlsServer;

/// Its user, the superuser.
const USER: &str = "vellum";
/// The user's password.
const PASSWORD: &str = "vellum-test-secret";
/// The user of the system that has nothing, which the server runs as if this process is root.
const NOBODY: u32 = 65_534;
/// Starts after a crash, a count: processes of the killed server may take a moment to end.
const START_TRIES: u32 = 20;

/// A server with one database.
pub struct PostgresServer {
    process: ServerProcess,
    programs: PathBuf,
    port: u16,
    dir: PathBuf,
    options: Vec<String>,
}

impl PostgresServer {
    /// Starts it with further settings, such as `fsync=off`.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, None)
    }

    /// Starts it with the certificate of another server of this host.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start_encrypted(certificate: &TlsServer) -> Self {
        Self::start_with(
            &["ssl=on", "ssl_cert_file=server.pem", "ssl_key_file=server.key"],
            Some(certificate),
        )
    }

    fn start_with(settings: &[&str], certificate: Option<&TlsServer>) -> Self {
        let programs = find_programs();
        let port = find_free_port();
        let dir = std::env::temp_dir().join(format!("vellum-postgres-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the server");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("a private directory");
        let password_file = dir.join("password");
        fs::write(&password_file, PASSWORD).expect("the server's password");
        if is_root() {
            for path in [&dir, &password_file] {
                std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("a directory of its own");
            }
        }
        let mut init = as_server_user(&programs.join("initdb"), &dir);
        init.arg("--pgdata").arg(dir.join("data")).args(["--username", USER, "--auth", "scram-sha-256"]);
        // A power cut ends the test as well, so that nothing has to be synced here.
        init.args(["--no-sync", "--no-instructions", "--encoding", "UTF8", "--locale", "C"]);
        init.arg("--pwfile").arg(&password_file);
        let output = init.output().expect("the end of initdb");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        if let Some(certificate) = certificate {
            give_file(&certificate.certificate_file(), &dir.join("data/server.pem"));
            give_file(&certificate.key_file(), &dir.join("data/server.key"));
        }
        let options: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let process = start_process(&programs, &dir, port, &options);
        Self { process, programs, port, dir, options }
    }

    /// Its address, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/postgres", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it and starts it again.
    pub fn crash_and_restart(&mut self) {
        self.process.kill();
        self.process = start_process(&self.programs, &self.dir, self.port, &self.options);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Runs a statement as the superuser, and returns what it prints.
    ///
    /// # Panics
    /// Panics if it fails.
    pub fn run(&self, statement: &str) -> String {
        let mut command = Command::new(self.programs.join("psql"));
        // Without the settings of the user who runs the tests, and without a frame around what it prints.
        command.args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", statement]);
        let output = command.arg(self.url()).output().expect("the end of psql");
        assert!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.process.kill();
        // Other processes of the server may still write there, so something may stay.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Copies a file for the server, which takes a key only if it is private.
fn give_file(from: &Path, to: &Path) {
    fs::copy(from, to).expect("a copy for the server");
    fs::set_permissions(to, fs::Permissions::from_mode(0o600)).expect("a private file");
    if is_root() {
        std::os::unix::fs::chown(to, Some(NOBODY), Some(NOBODY)).expect("a file of the server");
    }
}

fn as_server_user(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).env("LC_ALL", "C");
    if is_root() {
        // PostgreSQL refuses to run as root.
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn start_process(programs: &Path, dir: &Path, port: u16, options: &[String]) -> ServerProcess {
    let data = dir.join("data");
    for _ in 0..START_TRIES {
        let mut command = as_server_user(&programs.join("postgres"), dir);
        command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        // Without a socket, which would be in a folder of the system where this user may not write.
        command.args(["-c", "unix_socket_directories=", "-c", "max_connections=50"]);
        for option in options {
            command.args(["-c", option]);
        }
        let mut process = ServerProcess::start(command, &dir.join("log"));
        // A killed server leaves its file.
        let process_id = process.id().to_string();
        // The last line of the file says it, once the port answers and nothing is recovered any more.
        let is_ready = || {
            let state = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            let is_own = state.lines().next() == Some(&process_id);
            is_own && state.lines().last().is_some_and(|line| line.trim() == "ready")
        };
        if process.wait_until(is_ready) {
            return process;
        }
    }
    panic!("PostgreSQL does not start: {}", fs::read_to_string(dir.join("log")).unwrap_or_default());
}

/// The folder of the newest installed version: Debian has its programs in no folder of `PATH`.
fn find_programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut programs: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    programs.retain(|folder| folder.join("initdb").exists());
    programs.sort();
    programs.pop().expect("PostgreSQL: run 'make tools'")
}
