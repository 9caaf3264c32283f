//! The process of a client's mount: what it answers to commands by itself, and what it has the server answer.
//!
//! Invariant: a command that concerns the mount is answered here, and one that concerns the worktree by the server.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use vellum_cluster::client::CommandSender;
use vellum_library::live;
use vellum_types::ErrorKind;
use vellum_volume::Volume;

use crate::mounting::control::{
    ClientMountStatus, ControlHandler, ControlLine, ControlMessage, ControlReply, ControlRequest, LINE_MAX,
    PendingReply, SOCKET, send_json_line, send_line, send_unmount_reply,
};
use crate::mounting::end::ShutdownSignal;
use crate::mounting::sharing::standby::StandbyState;
use crate::ui::json::error_code;

/// What the names of directories of clients' mounts begin with. No name of a worktree does.
const CLIENT_DIR_PREFIX: &str = "@client-";

/// The directory of a client's mount in the state directory.
pub fn client_dir(volume: &Volume) -> PathBuf {
    live::live_state_dir(volume, &format!("{CLIENT_DIR_PREFIX}{}", std::process::id()))
}

/// The clients' mounts whose processes use a state directory: their control sockets, and what they are.
pub fn find_clients_of(volume: &Volume) -> Vec<(PathBuf, ClientMountStatus)> {
    let own = live::live_state_dir(volume, "");
    let entries = std::fs::read_dir(own).into_iter().flatten().flatten();
    let is_client = |name: &OsStr| name.as_bytes().starts_with(CLIENT_DIR_PREFIX.as_bytes());
    let dirs = entries.filter(|entry| is_client(&entry.file_name()));
    dirs.filter_map(|entry| ask_client(entry.path().join(SOCKET))).collect()
}

/// The client's mount at a mountpoint that is seen on this machine, if its process answers: found by the sockets of the
/// machine, since nothing of the mount can be read while its server is away.
pub fn find_client_at(mountpoint: &Path) -> Option<(PathBuf, ClientMountStatus)> {
    let listed = std::fs::read("/proc/net/unix").ok()?;
    let lines = listed.split(|byte| *byte == b'\n');
    // `Num RefCount Protocol Flags Type St Inode Path`; the path may have spaces.
    let paths =
        lines.filter_map(|line| line.iter().position(|byte| *byte == b'/').and_then(|at| line.get(at..)));
    let is_client = |path: &&Path| {
        let dir = path.parent().and_then(Path::file_name);
        dir.is_some_and(|dir| dir.as_bytes().starts_with(CLIENT_DIR_PREFIX.as_bytes()))
    };
    let sockets = paths.map(|path| Path::new(OsStr::from_bytes(path))).filter(is_client);
    // Each connection has a line of its own.
    let sockets: BTreeSet<_> = sockets.collect();
    let mut found = sockets.into_iter().filter_map(|socket| ask_client(socket.into()));
    found.find(|(_, client)| client.mountpoint == mountpoint)
}

fn ask_client(socket: PathBuf) -> Option<(PathBuf, ClientMountStatus)> {
    // One that is stopped does not answer, and one that was killed leaves its socket.
    let mut asked = PendingReply::send_request(&socket, &ControlRequest::ClientMount).ok()?;
    let reply = asked.poll_reply(Some(CLIENT_ANSWER_MAX)).ok()??;
    Some((socket, reply.client_mount?))
}

/// How long the process of a client's mount may take to say what it is: it asks nobody.
const CLIENT_ANSWER_MAX: Duration = Duration::from_secs(2);

/// Removes it.
pub fn remove_client_dir(dir: &Path) {
    // What stays is a log that is not read again.
    let _ = std::fs::remove_dir_all(dir);
}

/// A client's mount.
#[derive(Debug, Clone, Default)]
pub struct ClientMountPlace {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The worktree.
    pub worktree: String,
}

/// Answers commands in the process of a client's mount.
#[derive(Default)]
pub struct ClientControl {
    /// Where the end of the mount is announced.
    pub end: Arc<ShutdownSignal>,
    /// Leads to the server; there once the client is connected.
    pub server: OnceLock<CommandSender>,
    /// Where it is mounted, and which worktree.
    pub place: ClientMountPlace,
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
            Some(ControlRequest::ClientMount) => {
                let reply = ControlReply { client_mount: self.describe_mount(), ..ControlReply::default() };
                let _ = send_json_line(stream, &ControlLine::Done(Box::new(reply)));
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
    fn describe_mount(&self) -> Option<ClientMountStatus> {
        let link = self.server.get()?.describe_link();
        Some(ClientMountStatus {
            mountpoint: self.place.mountpoint.clone(),
            worktree: self.place.worktree.clone(),
            connected: link.is_connected,
            waiting_changes: link.waiting_changes as u64,
            unsynced: link.has_unsynced_changes,
            kernel_requests: link.kernel_requests,
        })
    }

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
