//! A WebDAV server: rclone serves a directory.
//!
//! Invariant: it ends when it is dropped. The served directory stays.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Its credentials.
const USER: &str = "vellum-test";
const PASSWORD: &str = "vellum-test-secret";
/// Timeout of its start.
const START_MAX: Duration = Duration::from_secs(60);

/// A server of one directory.
pub struct WebdavServer {
    process: Child,
    port: u16,
}

impl WebdavServer {
    /// Serves a directory.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let port = {
            // The kernel gives a free port. Another process could take it before the server does, which makes
            // the start fail.
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("its address").port()
        };
        let mut command = Command::new("rclone");
        command.args(["serve", "webdav", "--config", "/dev/null", "--dir-cache-time", "0s"]);
        command.args(["--user", USER, "--pass", PASSWORD, "--addr", &format!("127.0.0.1:{port}")]);
        command.arg(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|e| panic!("cannot start rclone: {e}"));
        let mut server = Self { process, port };
        let start = Instant::now();
        // The server announces nothing, so its port is tried until it answers.
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.process.try_wait().expect("the state of the server");
            assert!(ended.is_none() && start.elapsed() < START_MAX, "the server did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// The address of a store in its directory.
    #[must_use]
    pub fn store_url(&self, folder: &str) -> String {
        format!("webdav://127.0.0.1:{}/{folder}", self.port)
    }

    /// The content of a credentials file for it.
    #[must_use]
    pub fn credentials_file() -> String {
        format!("user = {USER}\npassword = {PASSWORD}\n")
    }
}

impl Drop for WebdavServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
