//! Makes the files of a live state from the worktree's log.
//!
//! What this machine had before is not the worktree any more. If there is anything in it that was not published, it is
//! moved aside, as a live state of its own of which 'worktree keep' makes a worktree: what was synced is in the log, and
//! what was not may be of use. A crash in between leaves a state from which the same can be done again.

use std::fs;
use std::path::Path;

use vellum_live::folder::LocalFolder;
use vellum_shared_log::folder::{LoggedFolder, ReplayError, ReplayRequest, ReplayedFiles, replay_log};
use vellum_shared_log::{LogClaim, LogPosition, ServerRecord, SharedLog};
use vellum_volume::Volume;
use vellum_volume::refs::WorktreeLog;

use super::instances::{InstanceFile, LogInstances};
use crate::live::opening::remove_dir_if_present;
use crate::live::tokens::TokenFile;
use crate::live::{
    LEFT_FOLDER, LOG_FOLDER, LiveStateClaim, META_FOLDER, OpenError, Result, create_state_dir, sync_directory,
};

/// Where files are staged.
const STAGING_FOLDER: &str = "replay";
/// The metadata until all of them are in their place.
const NEW_META_FOLDER: &str = "meta.new";
/// What is moved aside until all of it is.
const LEAVING_FOLDER: &str = "left.new";

/// A log that this process has claimed, and whose files are to be made.
pub(super) struct ReplaySource<'a> {
    pub log: &'a dyn SharedLog,
    pub claim: &'a LogClaim,
    /// What the worktree's ref knows of it.
    pub known: &'a WorktreeLog,
    /// The server that had it before.
    pub before: Option<&'a ServerRecord>,
    /// This process.
    pub instance: [u8; 16],
}

impl LiveStateClaim {
    /// Makes the files from the log, in place of those that are here.
    pub(super) fn replace_files_from_log(
        &self,
        volume: &Volume,
        source: &ReplaySource<'_>,
    ) -> Result<ReplayedFiles> {
        let staging = self.dir().join(STAGING_FOLDER);
        // A replay that was interrupted may have left it, with a part of the files.
        remove_dir_if_present(&staging)?;
        create_state_dir(&staging)?;
        let folder = LocalFolder::open(&staging).map_err(OpenError::io_error("open", &staging))?;
        let request = ReplayRequest {
            log: source.log,
            keys: &volume.keys,
            claim: source.claim,
            floor: LogPosition(source.known.floor),
            staging: &folder,
        };
        // Before anything is changed here: a log that cannot be read leaves all as it is.
        let replayed = replay_log(&request).map_err(|error| self.replay_error(error))?;
        self.move_state_aside(volume, source)?;
        self.install_files(&replayed, &staging)?;
        remove_dir_if_present(&staging)?;
        Ok(replayed)
    }

    fn install_files(&self, replayed: &ReplayedFiles, staging: &Path) -> Result<()> {
        let new_meta = self.dir().join(NEW_META_FOLDER);
        remove_dir_if_present(&new_meta)?;
        create_state_dir(&new_meta)?;
        let segments = self.dir().join(LOG_FOLDER);
        create_state_dir(&segments)?;
        for file in &replayed.files {
            let target = match file.folder {
                LoggedFolder::Metadata => new_meta.join(&file.name),
                LoggedFolder::WriteLog => segments.join(&file.name),
            };
            let staged = staging.join(&file.staged);
            fs::rename(&staged, &target).map_err(OpenError::io_error("move", &staged))?;
        }
        // The moves into both directories must be durable before the name that makes them count.
        sync_directory(&new_meta)?;
        sync_directory(&segments)?;
        // Metadata without their log, or without a part of themselves, must never be opened: they come last, at once.
        fs::rename(&new_meta, self.dir().join(META_FOLDER))
            .map_err(OpenError::io_error("move", &new_meta))?;
        sync_directory(self.dir())
    }

    fn replay_error(&self, error: ReplayError) -> OpenError {
        let name = self.worktree_name().to_owned();
        match error {
            ReplayError::Log(error) => error.into(),
            ReplayError::Cut { end, floor } => OpenError::LogCut { name, end: end.0, floor: floor.0 },
            ReplayError::Io(source) => OpenError::io_error("write", self.dir().join(STAGING_FOLDER))(source),
        }
    }

    /// Makes room for what the log has.
    fn move_state_aside(&self, volume: &Volume, source: &ReplaySource<'_>) -> Result<()> {
        self.finish_leaving()?;
        let instances = InstanceFile::in_dir(self.dir());
        let tokens = TokenFile::in_dir(self.dir());
        let known = tokens.load_tokens()?;
        // Files that were being made from the log when this process died are nobody's work.
        let is_own_work = !instances.load_instances()?.current.is_empty() || !known.is_empty();
        // What cannot be read is kept.
        if is_own_work && self.has_unpublished_state().unwrap_or(true) {
            self.keep_aside(source.before)?;
        } else {
            self.remove_live_state()?;
            volume.release_live_states(self.worktree_name(), &known)?;
        }
        // The lease was that of the files that were here.
        tokens.save_tokens(&[])?;
        instances.save_instances(&LogInstances::pending_only(source.instance))
    }

    /// Moves this live state aside, as one of its own.
    fn keep_aside(&self, by: Option<&ServerRecord>) -> Result<()> {
        let left = self.dir().join(LEFT_FOLDER);
        if left.exists() {
            return Err(OpenError::LeftBehind {
                name: self.worktree_name().into(),
                place: left.display().to_string(),
                by: by.map_or_else(|| "another machine".into(), |by| by.host.clone()),
            });
        }
        let leaving = self.dir().join(LEAVING_FOLDER);
        create_state_dir(&leaving)?;
        // The tokens come before the metadata: once those are there, `finish_leaving` takes the directory for complete but for
        // its log.
        TokenFile::in_dir(&leaving).save_tokens(&TokenFile::in_dir(self.dir()).load_tokens()?)?;
        let meta = self.dir().join(META_FOLDER);
        fs::rename(&meta, leaving.join(META_FOLDER)).map_err(OpenError::io_error("move", &meta))?;
        self.finish_leaving()
    }

    /// Goes on with what a crash interrupted. The metadata go first: once they are there, the log belongs to them.
    fn finish_leaving(&self) -> Result<()> {
        let leaving = self.dir().join(LEAVING_FOLDER);
        if !leaving.join(META_FOLDER).exists() {
            return Ok(());
        }
        let segments = self.dir().join(LOG_FOLDER);
        let moved = leaving.join(LOG_FOLDER);
        if segments.exists() && !moved.exists() {
            fs::rename(&segments, &moved).map_err(OpenError::io_error("move", &segments))?;
        }
        sync_directory(&leaving)?;
        let left = self.dir().join(LEFT_FOLDER);
        fs::rename(&leaving, &left).map_err(OpenError::io_error("move", &leaving))?;
        sync_directory(self.dir())
    }
}
