//! The notes of tries, `try/<name>/note.json` in the state directory: what each try is of, and how far it is.
//!
//! Invariant: a note is written before anything of its try exists, and removed after everything of it is gone, so that
//! whatever a killed process leaves is found by its note. It is durable when the result is, and from the beginning if the fork
//! is a copy: of any other try whose command has not ended, a power cut may leave no more than the folder.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vellum_host::escape::format_path;
use vellum_host::process::read_process_start;
use vellum_library::live;
use vellum_types::{LookupResult, SnapshotId, UnixTime};
use vellum_volume::StateDir;
use vellum_volume::device::{join_line_name, new_try_name};
use vellum_volume::refs::check_ref_name;
use vellum_volume::session::current_time;
use vellum_volume::state::STATE_DIR;

use crate::error::{CliError, Result};

/// Folder of all tries in the state directory.
const FOLDER: &str = "try";
const NOTE_FILE: &str = "note.json";
/// Name of the mountpoint in the folder of a try.
const MOUNT_FOLDER: &str = "mnt";

/// How long a try may have a folder and no note: it writes that at once.
const BEGINNING_MAX: Duration = Duration::from_secs(60);

/// What is known of a try.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TryNote {
    /// The worktree of its fork.
    pub name: String,
    /// The worktree that it is a fork of.
    pub of: String,
    /// Where that is.
    place: Vec<u8>,
    /// The snapshot that the fork began with, in hexadecimal; None: the fork was not made yet.
    pub base: Option<String>,
    /// The command and its arguments.
    command: Vec<Vec<u8>>,
    /// The directory outside of the worktree that was made to show the state directory in the try.
    #[serde(default)]
    pub state_view: Option<PathBuf>,
    /// The directory that its fork is copied into; None: the fork is mounted.
    #[serde(default)]
    pub copy: Option<CopyPlace>,
    /// When it began, Unix seconds and nanoseconds.
    started: i64,
    started_nanos: u32,
    /// The process of `vellum try`.
    pub process: u32,
    /// When that process began, in the kernel's ticks: numbers of processes are used again.
    process_start: u64,
    /// The exit status of the command; None: it has none yet, or `vellum try` was killed.
    pub status: Option<u8>,
    /// The snapshot of what the command left, in hexadecimal; None: not taken yet.
    pub result: Option<String>,
}

/// A directory that a fork is copied into.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyPlace {
    /// Where it is.
    path: Vec<u8>,
    /// Its inode; None: it may not be there yet. Whatever else is there later is not deleted.
    pub inode: Option<u64>,
}

impl CopyPlace {
    /// The directory beside a worktree for the try of this name: what lies beside the worktree is found beside the copy.
    pub fn beside(worktree: &Path, name: &str) -> Self {
        let mut path = worktree.as_os_str().to_owned();
        path.push(".");
        path.push(name);
        Self { path: path.into_vec(), inode: None }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        OsString::from_vec(self.path.clone()).into()
    }

    /// Its path, as people read it.
    pub fn format_path(&self) -> String {
        format_path(&self.path)
    }
}

impl TryNote {
    /// A try that begins now.
    pub fn new(of: &str, place: &Path, command: &[OsString], device: Option<&str>) -> Self {
        // The keys of a hasher are random.
        let random = (RandomState::new().build_hasher().finish() >> 32) as u32;
        let name = new_try_name(random);
        let process = std::process::id();
        let started = current_time();
        Self {
            of: of.into(),
            place: place.as_os_str().as_bytes().into(),
            command: command.iter().map(|word| word.as_bytes().into()).collect(),
            started: started.secs,
            started_nanos: started.nanos,
            process,
            process_start: read_process_start(process),
            ..Self::new_unknown(&device.map_or_else(|| name.clone(), |device| join_line_name(device, &name)))
        }
    }

    /// A try of which only the name is known. It does not run.
    pub fn new_unknown(name: &str) -> Self {
        Self {
            name: name.into(),
            of: String::new(),
            place: Vec::new(),
            base: None,
            command: Vec::new(),
            state_view: None,
            copy: None,
            started: 0,
            started_nanos: 0,
            process: 0,
            process_start: 0,
            status: None,
            result: None,
        }
    }

    /// Where the worktree is that it is a fork of.
    pub fn place(&self) -> PathBuf {
        OsString::from_vec(self.place.clone()).into()
    }

    /// When it began.
    pub fn started(&self) -> UnixTime {
        UnixTime { secs: self.started, nanos: self.started_nanos }
    }

    /// The command as people read it.
    pub fn format_command(&self) -> String {
        self.command.iter().map(format_path).collect::<Vec<_>>().join(" ")
    }

    /// Whether its `vellum try` still runs.
    pub fn is_running(&self) -> bool {
        // Zero: the process has ended.
        self.process_start != 0 && read_process_start(self.process) == self.process_start
    }

    /// Makes a directory outside of the worktree for the state directory: inside the try, the fork covers that. Returns its
    /// path.
    pub fn make_state_view(&mut self) -> Result<PathBuf> {
        let covered = self.place();
        let places = [std::env::temp_dir(), "/var/tmp".into(), "/dev/shm".into(), "/run".into()];
        let mut last = None;
        for place in places {
            let Ok(place) = place.canonicalize() else { continue };
            // A directory there would be covered by the fork, too.
            if place.starts_with(&covered) {
                continue;
            }
            let view = place.join(format!("vellum-{}", self.name));
            // The directory itself must not exist: nobody else prepares it.
            let mut private = fs::DirBuilder::new();
            // The places are open to all users, none of whom may put something where the state directory is to be shown.
            private.mode(0o700);
            match private.create(&view).and_then(|()| private.create(view.join(STATE_DIR))) {
                Ok(()) => {
                    self.state_view = Some(view.clone());
                    return Ok(view.join(STATE_DIR));
                }
                // A place may be missing or read-only for this user: the next one is tried, and only the last error is
                // reported.
                Err(error) => last = Some((view, error)),
            }
        }
        let unknown = || (PathBuf::from("a temporary directory"), std::io::ErrorKind::NotFound.into());
        let (view, error) = last.unwrap_or_else(unknown);
        Err(CliError::io_error("make", view.display().to_string())(error))
    }

    /// Removes that directory. Outside of the try it is empty.
    pub fn remove_state_view(&mut self) {
        if let Some(view) = self.state_view.take() {
            // Never with what is in it. An empty directory that stays in a temporary place does no harm.
            let _ = fs::remove_dir(view.join(STATE_DIR));
            let _ = fs::remove_dir(view);
        }
    }

    /// The snapshot that the fork began with.
    pub fn base_id(&self) -> Option<SnapshotId> {
        self.base.as_deref().and_then(|id| id.parse().ok())
    }

    /// The snapshot of what the command left.
    pub fn result_id(&self) -> Option<SnapshotId> {
        self.result.as_deref().and_then(|id| id.parse().ok())
    }
}

/// The tries of a state directory.
#[derive(Debug, Clone)]
pub struct TryNotes {
    state: StateDir,
}

impl TryNotes {
    /// Those of a state directory.
    pub fn new(state: &StateDir) -> Self {
        Self { state: state.clone() }
    }

    /// The folder of a try.
    fn folder(&self, name: &str) -> PathBuf {
        self.state.join(FOLDER).join(name)
    }

    /// Where the fork of a try is mounted.
    pub fn mountpoint(&self, name: &str) -> PathBuf {
        self.folder(name).join(MOUNT_FOLDER)
    }

    /// Writes a note. The first time, the folder of the try is made.
    pub fn write_note(&self, note: &TryNote) -> Result<()> {
        live::create_state_dir(&self.mountpoint(&note.name))?;
        let path = note_path(&note.name);
        // To make it durable takes as long as all else that has to be done before the command runs, unless that is to
        // copy everything; and what a power cut leaves of a copy must be found.
        match note.result.is_some() || note.copy.is_some() {
            false => self.state.write_json_file_unsynced(&path, note)?,
            true => self.state.write_json_file(&path, note)?,
        }
        Ok(())
    }

    /// The note of a try; None: there is none of this name.
    pub fn read_note(&self, name: &str) -> Result<Option<TryNote>> {
        let Some(text) = self.state.read_file(&note_path(name))? else { return Ok(None) };
        if text.is_empty() {
            // A power cut came before its content was on the disk.
            return Ok(None);
        }
        let note = serde_json::from_slice(&text).map_err(|error| {
            CliError::io_error("read", self.state.join(&note_path(name)).display().to_string())(error.into())
        })?;
        Ok(Some(note))
    }

    /// All tries, the oldest first.
    pub fn list_notes(&self) -> Result<Vec<TryNote>> {
        let mut notes = Vec::new();
        for name in self.list_folders()? {
            notes.extend(self.read_note(&name)?);
        }
        notes.sort_by_key(TryNote::started);
        Ok(notes)
    }

    /// The names of tries that have no note: they were killed before it was written, or a power cut took it.
    pub fn list_without_note(&self) -> Result<Vec<String>> {
        let is_old = |name: &String| {
            let made = fs::metadata(self.folder(name)).and_then(|folder| folder.modified());
            // A younger one may be about to be written. What the clock cannot tell stays.
            made.ok().and_then(|made| made.elapsed().ok()).is_some_and(|age| age > BEGINNING_MAX)
        };
        let mut names = Vec::new();
        for name in self.list_folders()?.into_iter().filter(is_old) {
            if self.read_note(&name)?.is_none() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn list_folders(&self) -> Result<Vec<String>> {
        let folder = self.state.join(FOLDER);
        let failed = || CliError::io_error("list", folder.display().to_string());
        let Some(entries) = fs::read_dir(&folder).none_if_missing().map_err(failed())? else {
            return Ok(Vec::new());
        };
        let entries = entries.collect::<std::io::Result<Vec<_>>>().map_err(failed())?;
        // Names of tries are plain text; what else is there is not ours.
        let names = entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| check_ref_name(name).is_ok()).collect())
    }

    /// Removes the folder of a try of which nothing else is left. The mountpoint must be empty.
    pub fn remove_note(&self, name: &str) -> Result<()> {
        let folder = self.folder(name);
        let failed = || CliError::io_error("remove", folder.display().to_string());
        // Not with all that is in it: if something is still mounted there, that is the content of the fork.
        let remove = || {
            fs::remove_dir(self.mountpoint(name)).ignore_missing()?;
            fs::remove_file(folder.join(NOTE_FILE)).ignore_missing()?;
            fs::remove_dir(&folder).ignore_missing()
        };
        remove().map_err(failed())
    }
}

fn note_path(name: &str) -> String {
    format!("{FOLDER}/{name}/{NOTE_FILE}")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_is_noted_is_read_and_removed() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::create(temp.path()).unwrap();
        let notes = TryNotes::new(&state);
        assert!(notes.list_notes().unwrap().is_empty());
        let command = [OsString::from("make"), OsString::from_vec(vec![0xff])];
        let mut note = TryNote::new("main", Path::new("/w"), &command, None);
        notes.write_note(&note).unwrap();
        note.status = Some(3);
        notes.write_note(&note).unwrap();
        let read = notes.list_notes().unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].status, read[0].place()), (Some(3), PathBuf::from("/w")));
        assert_eq!(read[0].format_command(), "make \\xff");
        assert!(read[0].is_running());
        // What is mounted is never removed with the note.
        fs::write(notes.mountpoint(&note.name).join("file"), "").unwrap();
        notes.remove_note(&note.name).unwrap_err();
        assert!(notes.read_note(&note.name).unwrap().is_some());
        fs::remove_file(notes.mountpoint(&note.name).join("file")).unwrap();
        notes.remove_note(&note.name).unwrap();
        assert!(notes.list_notes().unwrap().is_empty() && notes.read_note("../../x").unwrap().is_none());
    }

    #[test]
    fn what_has_no_note_is_found_when_nobody_writes_it_any_more() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::create(temp.path()).unwrap();
        let notes = TryNotes::new(&state);
        for name in ["killed", "cut", "young"] {
            fs::create_dir_all(notes.mountpoint(name)).unwrap();
        }
        // What a power cut leaves of a file that was not synced.
        fs::write(state.join(&note_path("cut")), "").unwrap();
        for name in ["killed", "cut"] {
            let folder = fs::File::open(notes.folder(name)).unwrap();
            folder.set_modified(std::time::SystemTime::now() - 2 * BEGINNING_MAX).unwrap();
        }
        assert!(notes.list_notes().unwrap().is_empty());
        let mut found = notes.list_without_note().unwrap();
        found.sort();
        assert_eq!(found, ["cut", "killed"]);
        notes.remove_note("cut").unwrap();
        assert_eq!(notes.list_without_note().unwrap(), ["killed"]);
    }
}
