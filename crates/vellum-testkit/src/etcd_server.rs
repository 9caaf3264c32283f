//! An etcd of one server.
//!
//! Invariant: it ends when it is dropped. Its directory stays.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ports::find_free_port;
use crate::server_process::{ServerProcess, ask_server};

/// A server with its data in one directory.
pub struct EtcdServer {
    process: ServerProcess,
    port: u16,
    peer_port: u16,
    dir: PathBuf,
    options: Vec<String>,
}

impl EtcdServer {
    /// Starts it with its data in `dir`, and further options.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(dir: &Path, options: &[&str]) -> Self {
        std::fs::create_dir_all(dir).expect("a directory for the server");
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let port = find_free_port();
        // etcd listens for other servers also if there are none.
        let peer_port = find_free_port();
        let process = start_process(dir, port, peer_port, &options);
        Self { process, port, peer_port, dir: dir.to_owned(), options }
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it and starts it again.
    pub fn crash_and_restart(&mut self) {
        self.process.kill();
        self.process = start_process(&self.dir, self.port, self.peer_port, &self.options);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends a request of the JSON gateway. Returns the answer with its header.
    #[must_use]
    pub fn request(&self, path: &str, body: &str) -> String {
        let len = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        );
        ask_server(self.port, &format!("{head}{body}"))
    }
}

fn start_process(dir: &Path, port: u16, peer_port: u16, options: &[String]) -> ServerProcess {
    let mut command = Command::new("etcd");
    let client_url = format!("http://127.0.0.1:{port}");
    let peer_url = format!("http://127.0.0.1:{peer_port}");
    command.arg("--data-dir").arg(dir.join("data"));
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    // A server that is given no name is called `default`.
    command.args(["--initial-cluster", &format!("default={peer_url}"), "--logger", "zap"]).args(options);
    let mut process = ServerProcess::start(command, &dir.join("log"));
    // Healthy, or full: both answer requests.
    let is_ready = || ask_server(port, "GET /health HTTP/1.0\r\n\r\n").contains("\"health\":");
    assert!(process.wait_until(is_ready), "etcd has ended: {}", process.read_log());
    process
}
