//! A WebDAV server: rclone serves a directory.
//!
//! Invariant: it ends when it is dropped. The served directory stays.

use std::path::Path;

use crate::rclone::RcloneServer;

/// Its credentials.
const USER: &str = "vellum-test";
const PASSWORD: &str = "vellum-test-secret";

/// A server of one directory.
pub struct WebdavServer {
    server: RcloneServer,
}

impl WebdavServer {
    /// Serves a directory.
    ///
    /// # Panics
    /// Panics if it cannot be started: `make tools` installs it.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        Self { server: RcloneServer::start("webdav", &["--user", USER, "--pass", PASSWORD], dir) }
    }

    /// The address of a store in its directory.
    #[must_use]
    pub fn store_url(&self, folder: &str) -> String {
        format!("webdav://127.0.0.1:{}/{folder}", self.server.port)
    }

    /// The content of a credentials file for it.
    #[must_use]
    pub fn credentials_file() -> String {
        format!("user = {USER}\npassword = {PASSWORD}\n")
    }
}
