//! rclone serves a directory.
//!
//! Invariant: the server ends when it is dropped. The served directory stays.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::ports::{find_free_port, wait_for_port};

/// A server that runs.
pub(crate) struct RcloneServer {
    process: Child,
    pub port: u16,
}

impl RcloneServer {
    /// Serves a directory over a protocol, with more options.
    pub fn start(protocol: &str, options: &[&str], dir: &Path) -> Self {
        let port = find_free_port();
        let mut command = Command::new("rclone");
        // Without a cache of listings, since tests may change the directory beside the server, and without
        // the configuration of the user who runs them.
        command.args(["serve", protocol, "--config", "/dev/null", "--dir-cache-time", "0s"]);
        command.args(options).args(["--addr", &format!("127.0.0.1:{port}")]).arg(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|e| panic!("cannot start rclone: {e}"));
        let mut server = Self { process, port };
        wait_for_port(&mut server.process, port);
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
