//! rclone serves a directory.
//!
//! Invariant: the server ends when it is dropped. The served directory stays.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of its start.
const START_MAX: Duration = Duration::from_secs(60);

/// A server that runs.
pub(crate) struct RcloneServer {
    process: Child,
    pub port: u16,
}

impl RcloneServer {
    /// Serves a directory over a protocol, with more options.
    pub fn start(protocol: &str, options: &[&str], dir: &Path) -> Self {
        let port = {
            // The kernel gives a free port. Another process could take it before the server does, which makes
            // the start fail.
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("its address").port()
        };
        let mut command = Command::new("rclone");
        // Without a cache of listings, since tests may change the directory beside the server, and without
        // the configuration of the user who runs them.
        command.args(["serve", protocol, "--config", "/dev/null", "--dir-cache-time", "0s"]);
        command.args(options).args(["--addr", &format!("127.0.0.1:{port}")]).arg(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|e| panic!("cannot start rclone: {e}"));
        let mut server = Self { process, port };
        let start = Instant::now();
        // The server announces nothing, so its port is tried until it answers.
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            // A server that has ended will never answer.
            let ended = server.process.try_wait().expect("the state of the server");
            assert!(ended.is_none() && start.elapsed() < START_MAX, "the server did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for RcloneServer {
    fn drop(&mut self) {
        // It may have ended already. It is waited for in any case, or it would remain as a zombie.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
