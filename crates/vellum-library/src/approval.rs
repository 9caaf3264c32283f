//! Approvals: what an agent asks for and a person decides, through files in the state directory.
//!
//! The agent's server writes a request, `approvals/<id>.json`. A person reads it on a terminal, and the answer is written
//! beside it, `<id>.answer`. Only the server that wrote the request takes the answer, once.
//!
//! Invariant: an answer holds a keyed hash of the request that was shown. A request that was changed between being written
//! and being read is therefore approved by nobody. In a volume without encryption the key is known to everybody: there, and
//! against a program that can do all that its user can, an approval is a question, not a wall.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_volume::VolumeError;
use vellum_volume::session::current_time;

use crate::error::Result;
use crate::live::create_state_dir;
use crate::volume::Volume;

const FOLDER: &str = "approvals";
const VERSION: u32 = 1;
/// How long a request waits, and how long an approval holds, seconds.
pub const APPROVAL_SECONDS: i64 = 600;
/// Longest request, bytes: some hundred paths.
const REQUEST_MAX: u64 = 4 << 20;
/// Digits and letters of an id.
const ID_LEN: usize = 16;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    version: u32,
    /// Which request, hexadecimal.
    pub id: String,
    /// Who asks, as the program calls itself.
    pub client: String,
    /// The directory that would be changed.
    pub directory: String,
    /// The snapshot that would be restored.
    pub target: String,
    /// The paths that were named; none: all.
    pub paths: Vec<String>,
    /// What would be done: the first steps.
    pub steps: Vec<ApprovalStep>,
    /// How many steps there are.
    pub step_count: u64,
    /// How many paths have content that no snapshot has; a safety snapshot would keep it.
    pub unsaved: u64,
    /// When nobody may answer any more, seconds since 1970.
    pub expires: i64,
}

/// What would be done with a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalStep {
    /// A verb.
    pub action: String,
    /// The path, from the root.
    pub path: String,
}

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalAnswer {
    /// It may be done, once.
    Approved,
    /// It may not be done.
    Refused,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerFile {
    version: u32,
    approved: bool,
    answered: i64,
    check: String,
}

/// The requests of a volume, in the state directory at which it was opened.
#[derive(Clone)]
pub struct ApprovalFolder {
    dir: PathBuf,
    keys: Arc<VolumeKeys>,
}

impl Volume {
    /// Returns where agents ask, and persons answer.
    #[must_use]
    pub fn approvals(&self) -> ApprovalFolder {
        ApprovalFolder::of_volume(self.inner())
    }
}

impl ApprovalRequest {
    /// A request that can be answered for ten minutes. The rest is to be filled in.
    #[must_use]
    pub fn new(id: String, client: String, directory: String, target: String) -> Self {
        Self {
            version: VERSION,
            id,
            client,
            directory,
            target,
            paths: Vec::new(),
            steps: Vec::new(),
            step_count: 0,
            unsaved: 0,
            expires: current_time().secs.saturating_add(APPROVAL_SECONDS),
        }
    }

    fn is_expired(&self) -> bool {
        current_time().secs > self.expires
    }

    fn encode(&self) -> Vec<u8> {
        // Of strings and numbers alone: this cannot fail, and an empty text would match no request.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }
}

impl ApprovalFolder {
    /// That of a volume.
    #[must_use]
    pub fn of_volume(volume: &vellum_volume::Volume) -> Self {
        Self { dir: volume.state.join(FOLDER), keys: volume.keys.clone() }
    }

    /// Asks. Whoever lists the requests sees it until it was answered, or has expired.
    pub fn write_request(&self, request: &ApprovalRequest) -> Result<()> {
        create_state_dir(&self.dir)?;
        self.write_file(&self.path_of(&request.id, "json"), &request.encode())
    }

    /// Returns the requests that wait for an answer, by id. Removes those that have expired.
    pub fn list_requests(&self) -> Result<Vec<ApprovalRequest>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(VolumeError::wrap_local_error(&self.dir)(error).into()),
        };
        let mut requests = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            // What cannot be read is no request of this version, and nobody can be asked about it.
            let Some(request) = self.read_request(id) else { continue };
            match request.is_expired() {
                true => self.remove_request(id),
                // It was answered, but the answer was not taken yet: nobody has to be asked again.
                false if self.path_of(id, "answer").exists() => {}
                false => requests.push(request),
            }
        }
        requests.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(requests)
    }

    /// Records what a person said about a request that was shown to them.
    pub fn write_answer(&self, request: &ApprovalRequest, answer: ApprovalAnswer) -> Result<()> {
        let answered = current_time().secs;
        let approved = answer == ApprovalAnswer::Approved;
        let check = self.compute_check(request, approved, answered);
        let file = AnswerFile { version: VERSION, approved, answered, check };
        let bytes = serde_json::to_vec(&file).unwrap_or_default();
        self.write_file(&self.path_of(&request.id, "answer"), &bytes)
    }

    /// Takes the answer to a request, which is good for once. `request` is what was asked, not what the file says now. None:
    /// nobody has answered yet, or what is there answers another question.
    pub fn take_answer(&self, request: &ApprovalRequest) -> Option<ApprovalAnswer> {
        let path = self.path_of(&request.id, "answer");
        let bytes = read_short_file(&path)?;
        let file: AnswerFile = serde_json::from_slice(&bytes).ok()?;
        // Before it is looked at: whoever takes it second gets nothing.
        fs::remove_file(&path).ok()?;
        let is_answer = file.version == VERSION
            && file.check == self.compute_check(request, file.approved, file.answered)
            && current_time().secs.saturating_sub(file.answered) <= APPROVAL_SECONDS;
        is_answer.then_some(match file.approved {
            true => ApprovalAnswer::Approved,
            false => ApprovalAnswer::Refused,
        })
    }

    /// Forgets a request, and what was answered.
    pub fn remove_request(&self, id: &str) {
        // What is gone already need not be removed, and what stays expires.
        let _ = fs::remove_file(self.path_of(id, "json"));
        let _ = fs::remove_file(self.path_of(id, "answer"));
    }

    fn read_request(&self, id: &str) -> Option<ApprovalRequest> {
        let bytes = read_short_file(&self.path_of(id, "json"))?;
        let request: ApprovalRequest = serde_json::from_slice(&bytes).ok()?;
        // The id becomes the name of a file: one that could lead out of the directory is none.
        let is_id = |id: &str| id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (request.version == VERSION && request.id == id && is_id(id)).then_some(request)
    }

    fn path_of(&self, id: &str, kind: &str) -> PathBuf {
        self.dir.join(format!("{id}.{kind}"))
    }

    fn compute_check(&self, request: &ApprovalRequest, approved: bool, answered: i64) -> String {
        // Answer and time are hashed, too: a refusal cannot be made an approval, nor an old answer a new one.
        let mut named = format!("approval, {approved}, {answered}\0").into_bytes();
        named.extend_from_slice(&request.encode());
        let hash = self.keys.compute_record_id(RecordDomain::Local, &named);
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Through a name of its own: whoever reads the file sees all of it or nothing.
    fn write_file(&self, path: &std::path::Path, bytes: &[u8]) -> Result<()> {
        let fresh = path.with_extension(format!("new-{}", std::process::id()));
        // One that a killed process left.
        let _ = fs::remove_file(&fresh);
        let write = |mut file: File| file.write_all(bytes).and_then(|()| fs::rename(&fresh, path));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).and_then(write);
        Ok(made.map_err(VolumeError::wrap_local_error(path))?)
    }
}

fn read_short_file(path: &std::path::Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // What is longer than any request is cut off, and does not parse then.
    File::open(path).ok()?.take(REQUEST_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, ApprovalFolder) {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::create(dir.path()).unwrap().volume;
        (dir, volume.approvals())
    }

    fn request(id: &str) -> ApprovalRequest {
        let step = ApprovalStep { action: "delete".into(), path: "a".into() };
        ApprovalRequest {
            steps: vec![step],
            ..ApprovalRequest::new(id.into(), "client".into(), "/d".into(), "1".into())
        }
    }

    #[test]
    fn an_answer_is_taken_once() {
        let (_dir, folder) = folder();
        let asked = request("0123456789abcdef");
        assert_eq!(folder.take_answer(&asked), None);
        folder.write_request(&asked).unwrap();
        assert_eq!(folder.list_requests().unwrap(), std::slice::from_ref(&asked));
        folder.write_answer(&asked, ApprovalAnswer::Approved).unwrap();
        assert!(folder.list_requests().unwrap().is_empty());
        assert_eq!(folder.take_answer(&asked), Some(ApprovalAnswer::Approved));
        assert_eq!(folder.take_answer(&asked), None);
        folder.write_answer(&asked, ApprovalAnswer::Refused).unwrap();
        assert_eq!(folder.take_answer(&asked), Some(ApprovalAnswer::Refused));
    }

    #[test]
    fn what_was_shown_is_what_is_approved() {
        let (_dir, folder) = folder();
        let asked = request("0123456789abcdef");
        // The file was changed before the person saw it: it shows less than what would be done.
        let shown = ApprovalRequest { steps: Vec::new(), ..asked.clone() };
        folder.write_request(&shown).unwrap();
        folder.write_answer(&shown, ApprovalAnswer::Approved).unwrap();
        assert_eq!(folder.take_answer(&asked), None);
        // A refusal cannot be turned into an approval.
        folder.write_answer(&asked, ApprovalAnswer::Refused).unwrap();
        let path = folder.path_of(&asked.id, "answer");
        let forged = fs::read_to_string(&path).unwrap().replace("false", "true");
        fs::write(&path, forged).unwrap();
        assert_eq!(folder.take_answer(&asked), None);
    }

    #[test]
    fn old_and_foreign_files_are_no_requests() {
        let (_dir, folder) = folder();
        let late = ApprovalRequest { expires: 0, ..request("0123456789abcdef") };
        folder.write_request(&late).unwrap();
        for (name, content) in [("x.json", "{}"), ("0123456789abcdee.json", "not JSON"), ("other", "")] {
            fs::write(folder.dir.join(name), content).unwrap();
        }
        assert!(folder.list_requests().unwrap().is_empty());
        assert!(!folder.path_of(&late.id, "json").exists());
    }
}
