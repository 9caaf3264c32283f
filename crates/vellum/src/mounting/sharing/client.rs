//! The process of a client's mount: what it answers to commands by itself, and what it has the server answer.
//!
//! Invariant: a command that concerns the mount is answered here, and one that concerns the worktree by the server.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use vellum_cluster::client::CommandSender;
use vellum_library::live;
use vellum_types::ErrorKind;
use vellum_volume::Volume;

use crate::mounting::control::{
    ControlHandler, ControlLine, ControlMessage, ControlRequest, LINE_MAX, send_json_line, send_line,
    send_unmount_reply,
};
use crate::mounting::end::ShutdownSignal;
use crate::mounting::sharing::standby::StandbyState;
use crate::ui::json::error_code;

/// The directory of a client's mount in the state directory. No worktree has such a name.
pub fn client_dir(volume: &Volume) -> PathBuf {
    live::live_state_dir(volume, &format!("@client-{}", std::process::id()))
}

/// Removes it.
pub fn remove_client_dir(dir: &Path) {
    // What stays is a log that is not read again.
    let _ = std::fs::remove_dir_all(dir);
}

/// Answers commands in the process of a client's mount.
#[derive(Default)]
pub struct ClientControl {
    /// Where the end of the mount is announced.
    pub end: Arc<ShutdownSignal>,
    /// Leads to the server; there once the client is connected.
    pub server: OnceLock<CommandSender>,
    /// What this process may serve itself; there if it does or stands by.
    pub standby: OnceLock<Arc<StandbyState>>,
}

impl ControlHandler for ClientControl {
    fn handle_connection(&self, stream: &UnixStream) {
        let mut line = String::new();
        // A longer line is cut, and is no JSON then: the sender gets an error.
        let read = BufReader::new(stream.take(LINE_MAX)).read_line(&mut line);
        let message = read.ok().and_then(|_| serde_json::from_str::<ControlMessage>(&line).ok());
        // Whoever asked may be gone: that an answer cannot be sent harms nobody.
        match message.map(|message| message.request) {
            None => {
                let _ = send_json_line(stream, &ControlLine::not_understood());
            }
            Some(ControlRequest::AwaitEnd) => {
                let begun = || drop(send_json_line(stream, &ControlLine::Done(Box::default())));
                self.end.wait_for_report(begun, |report| send_unmount_reply(stream, report));
            }
            Some(ControlRequest::PrepareEnd { skips_publishing }) => {
                self.prepare_end(skips_publishing, stream)
            }
            // Nobody else shows its mount.
            Some(ControlRequest::NoteDetached) => {
                let _ = send_json_line(stream, &ControlLine::Done(Box::default()));
            }
            Some(ControlRequest::Discard) => {
                // Other machines may be at work in it, which only the server knows.
                let message = "a client cannot discard the worktree".into();
                let kind = error_code(ErrorKind::Usage).into();
                let hint = Some("discard it where it is served".into());
                let _ = send_json_line(stream, &ControlLine::Failed { kind, message, hint });
            }
            Some(_) => {
                let _ = send_line(stream, self.ask_server(line.as_bytes()));
            }
        }
    }
}

impl ClientControl {
    fn prepare_end(&self, skips_publishing: bool, mut stream: &UnixStream) {
        if let Some(service) = self.standby.get().and_then(|standby| standby.find_service()) {
            // This process serves the worktree as well, whose write log may be full.
            return service.prepare_end(&self.end, skips_publishing, stream);
        }
        // Nothing of a client waits for room.
        let _ = send_json_line(stream, &ControlLine::Done(Box::default()));
        // Until whoever asked closes the connection.
        let _ = stream.read(&mut [0]);
    }

    fn ask_server(&self, line: &[u8]) -> Vec<u8> {
        let failed = |message: String| {
            let hint = Some("see whether the process that serves the worktree can be reached".into());
            ControlLine::Failed { kind: error_code(ErrorKind::Io).into(), message, hint }.to_json()
        };
        match self.server.get().map(|server| server.send_command(line)) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => failed(format!("the server of the worktree has not answered: {error}")),
            None => failed("the mount is not connected yet".into()),
        }
    }
}
