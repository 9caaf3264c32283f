//! The command that reaches a host, as a child process.
//!
//! Invariant: when this is dropped, the child exits by itself at the end of the session, or is killed. The drop does
//! not wait for it after a regular end, since a round trip would bring no information. Its standard error is that of
//! this process.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::address::{RemoteAddress, RemoteShell};
use crate::error::{Result, SyncError};
use crate::remote::session::{LinkSettings, SessionLink, SyncClient};

/// How long the child may take to exit by itself.
const GRACE: Duration = Duration::from_secs(5);

/// A running child, and the session with it.
pub(super) struct ConnectedProgram {
    pub client: SyncClient,
    child: Mutex<Option<Child>>,
}

impl ConnectedProgram {
    /// Starts the command.
    pub fn start_program(
        address: &RemoteAddress,
        shell: &RemoteShell,
        settings: &LinkSettings,
    ) -> Result<Self> {
        let (program, first) = shell.words.split_first().ok_or(SyncError::Lost)?;
        let mut command = Command::new(program);
        // No shell of this host sees these words. The other host's shell sees the program and `sync
        // --server`, and the path is sent over the connection.
        command.args(first).arg(&address.host).arg(&shell.program).args(["sync", "--server"]);
        // Standard error is inherited: ssh asks for passwords and reports errors there.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|source| SyncError::Io { action: "start ssh for", source })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(SyncError::Lost);
        };
        let link: Arc<SessionLink> = SessionLink::start_link(output.into(), input.into(), settings);
        Ok(Self { client: SyncClient::new(link), child: Mutex::new(Some(child)) })
    }
}

impl Drop for ConnectedProgram {
    fn drop(&mut self) {
        // This is read before the session ends, which closes the connection.
        let stands = self.client.link().loss_reason().is_none();
        self.client.finish_session();
        let Some(child) = self.child.get_mut().take() else { return };
        if stands {
            // If this process exits first, the child reads the end of its input, which also ends the session.
            std::thread::spawn(move || wait_or_kill(child, GRACE));
        } else {
            // The connection is lost, so the child cannot be asked to exit. It may hang in the network.
            wait_or_kill(child, Duration::ZERO);
        }
    }
}

/// Waits until the child has exited, and kills it after `patience`.
fn wait_or_kill(mut child: Child, mut patience: Duration) {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    while let Ok(None) = child.try_wait() {
        if start.elapsed() >= patience {
            // It may have ended meanwhile, which is as well.
            let _ = child.kill();
            patience = Duration::MAX;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
