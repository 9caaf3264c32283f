//! A web server: rclone serves a directory as plain files.
//!
//! Invariant: it ends when it is dropped. The served directory stays.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use crate::rclone::RcloneServer;

/// A server of one directory.
pub struct WebServer {
    server: RcloneServer,
}

impl WebServer {
    /// Serves a directory.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        Self { server: RcloneServer::start("http", &[], dir) }
    }

    /// Where the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port).into()
    }

    /// The address of a store in its directory.
    #[must_use]
    pub fn store_url(&self, folder: &str) -> String {
        format!("http://127.0.0.1:{}/{folder}", self.server.port)
    }
}
