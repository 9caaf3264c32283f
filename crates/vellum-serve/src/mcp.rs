//! Tools for coding agents: a server of the Model Context Protocol over standard input and output.
//!
//! What reads snapshots reads them through the library. What concerns the worktree runs the command line, the program that
//! started this one, so that a mounted worktree and a plain directory are the same to an agent, hooks run, and every change is
//! an operation that a person can undo.
//!
//! Invariant: no argument of a tool becomes an option of a command, and no path leaves the worktree or a fork that this
//! connection made. Restoring the worktree needs an approval that no tool can give ([`plans`]). Deliberately absent: tools
//! that forget, collect garbage, discard what no snapshot has, or change tags, keys, settings and hooks.

mod answer;
mod arguments;
mod catalog;
mod changing;
mod connection;
mod plans;
mod reading;
mod resources;

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::ServiceExt as _;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::stdio;
use tokio::runtime::Builder;
use vellum_library::Volume;

use crate::error::{Result, ServeError};
use connection::ToolServer;

/// Longest line of a client, bytes: no call of a tool needs more. A longer one is left out and answered by nothing.
const LINE_MAX: usize = 4 << 20;
/// Threads that read from the volume.
const THREADS: usize = 8;

/// What the tools are about, and what they may do.
#[derive(Default)]
pub struct McpSettings {
    /// The root of the worktree.
    pub worktree: PathBuf,
    /// The command line, of the same version.
    pub program: PathBuf,
    /// Where forks are made.
    pub forks: PathBuf,
    /// Whether commands may be tried.
    pub allow_try: bool,
    /// Whether the worktree may be restored without asking.
    pub allow_restore: bool,
}

/// Answers a client until it closes standard input.
pub fn serve_tools(volume: Volume, settings: McpSettings) -> Result<()> {
    let runtime = Builder::new_multi_thread()
        // These only move messages: what waits for a store has threads of its own.
        .worker_threads(2)
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .map_err(ServeError::for_action("start threads"))?;
    let done = runtime.block_on(async {
        let streams = stdio();
        let transport = AsyncRwTransport::new(streams.0, streams.1).with_max_line_length(LINE_MAX);
        let failed = |error: String| ServeError::Io {
            action: "speak to the client",
            source: std::io::Error::other(error),
        };
        let server = ToolServer::new(Arc::new(volume), settings);
        let running = server.serve(transport).await.map_err(|error| failed(error.to_string()))?;
        running.waiting().await.map(drop).map_err(|error| failed(error.to_string()))
    });
    // A thread that still waits for standard input would keep the process.
    runtime.shutdown_background();
    done
}
