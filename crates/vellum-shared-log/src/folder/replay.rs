//! Replay: makes the files of a live worktree from its log.
//!
//! Files are staged under names of their own, in an empty folder, and get their places when all of the log was read: a
//! machine that dies in between begins again. A log must begin with a base, and end with everything up to the position
//! that the worktree's ref knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use vellum_crypto::VolumeKeys;
use vellum_live::folder::{EngineFile, EngineFolder};
use vellum_types::FieldReader;

use super::operation::{FileNumber, FolderOperation, LoggedFolder};
use super::record::{ChainEnd, OpenedRecord, RecordCodec, RecordKind, RecordLink, damage_error};
use crate::error::SharedLogError;
use crate::log::{LogClaim, LogPosition, SharedLog};

/// Bytes that one request brings.
const READ_MAX: usize = 8 << 20;
/// Zeros that are written at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Which log is read, and where its files are made.
pub struct ReplayRequest<'a> {
    /// The log.
    pub log: &'a dyn SharedLog,
    /// Opens its records.
    pub keys: &'a VolumeKeys,
    /// The claim, under which the log does not change.
    pub claim: &'a LogClaim,
    /// Where the log must reach; zero if nothing is known.
    pub floor: LogPosition,
    /// An empty folder, in which files are staged.
    pub staging: &'a dyn EngineFolder,
}

/// A file that was made from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedFile {
    /// The folder that it belongs to.
    pub folder: LoggedFolder,
    /// Its name there.
    pub name: String,
    /// Its name in the staging folder.
    pub staged: String,
    pub(crate) number: FileNumber,
}

/// All files, as they were when the log ended.
#[derive(Debug, Clone)]
pub struct ReplayedFiles {
    /// The files.
    pub files: Vec<ReplayedFile>,
    pub(crate) end: ChainEnd,
    pub(crate) next_number: u64,
    /// Whether the log ends within a base that takes the place of everything before: what is appended behind it would
    /// be taken for a part of it.
    pub(crate) needs_base: bool,
    start: LogPosition,
}

impl ReplayedFiles {
    /// Bytes of the log.
    #[must_use]
    pub fn log_len(&self) -> u64 {
        self.end.position.0.saturating_sub(self.start.0)
    }
}

/// Why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] SharedLogError),
    /// It lacks what was acknowledged.
    #[error("the log ends at {}, and {} was acknowledged: its engine has lost the end of it", .end.0, .floor.0)]
    Cut {
        /// Where it ends.
        end: LogPosition,
        /// Where it ended before.
        floor: LogPosition,
    },
    /// A file cannot be made.
    #[error("cannot write a file that is made from the shared log: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads a log, and makes its files.
pub fn replay_log(request: &ReplayRequest<'_>) -> Result<ReplayedFiles, ReplayError> {
    let LogClaim { start, end, incarnation, .. } = *request.claim;
    // Before any file is made: programs were told that what is missing is durable, so nobody may go on without it unasked.
    if end < request.floor {
        return Err(ReplayError::Cut { end, floor: request.floor });
    }
    let codec = RecordCodec { keys: request.keys, incarnation };
    let mut replay = LogReplay { staging: request.staging, staged: 0, current: None, next: None };
    let mut at = ChainEnd { position: start, link: RecordLink::default() };
    while at.position < end {
        let bytes = request.log.read(at.position, READ_MAX)?;
        if bytes.is_empty() {
            return Err(
                damage_error(at.position, "the engine returns nothing where records should be").into()
            );
        }
        // A read returns whole appends, and each append consists of whole records, so that no record is cut off here.
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let record = codec.open(at, rest).map_err(|why| damage_error(at.position, why))?;
            let len = record.end.position.0 - at.position.0;
            replay.apply_record(&record, at.position)?;
            at = record.end;
            rest = usize::try_from(len).ok().and_then(|len| rest.get(len..)).unwrap_or_default();
        }
    }
    replay.finish(start, at)
}

/// The files of one base, and what was changed since.
#[derive(Default)]
struct ReplayState {
    names: BTreeMap<(LoggedFolder, String), FileNumber>,
    files: HashMap<FileNumber, StagedFile>,
}

struct StagedFile {
    file: Arc<dyn EngineFile>,
    staged: String,
}

struct LogReplay<'a> {
    staging: &'a dyn EngineFolder,
    /// Files that were ever staged.
    staged: u64,
    /// What the log has; None before the end of the first base.
    current: Option<ReplayState>,
    /// A base of which the end was not met yet, with what came after its beginning.
    next: Option<ReplayState>,
}

impl LogReplay<'_> {
    fn apply_record(&mut self, record: &OpenedRecord, position: LogPosition) -> Result<(), ReplayError> {
        let mut reader = FieldReader::new(&record.operations);
        let mut is_first = true;
        while reader.remaining() > 0 {
            let operation =
                FolderOperation::decode(&mut reader).map_err(|what| damage_error(position, what))?;
            let is_begin = matches!(operation, FolderOperation::BaseBegin { .. });
            // The kind says that the record is bound to nothing before it; only a base may be.
            if is_begin != (is_first && record.kind == RecordKind::Base) {
                return Err(damage_error(position, "a base begins where none can").into());
            }
            is_first = false;
            self.apply(&operation, position)?;
        }
        Ok(())
    }

    fn apply(&mut self, operation: &FolderOperation<'_>, position: LogPosition) -> Result<(), ReplayError> {
        match *operation {
            FolderOperation::BaseBegin { is_new } => {
                // A base in the middle repeats what is known from the operations before it. It only counts for a reader who
                // begins at it.
                if is_new || self.current.is_none() {
                    self.discard_next()?;
                    self.next = Some(ReplayState::default());
                }
                Ok(())
            }
            FolderOperation::BaseEnd => self.end_base(),
            FolderOperation::Name { folder, name, file } => {
                // From here on it exists, also if nothing is ever written into it.
                self.staged_file(file, position)?;
                self.set_name((folder, name.to_owned()), Some(file), position)
            }
            FolderOperation::Remove { folder, name } => {
                self.set_name((folder, name.to_owned()), None, position)
            }
            FolderOperation::Rename { folder, from, to, file } => {
                self.staged_file(file, position)?;
                // The new name first: a file without a name is removed.
                self.set_name((folder, to.to_owned()), Some(file), position)?;
                self.set_name((folder, from.to_owned()), None, position)
            }
            FolderOperation::Write { file, offset, bytes } => {
                self.change_file(file, position, |file| file.write_at(bytes, offset))
            }
            FolderOperation::Zeros { file, offset, len } => {
                self.change_file(file, position, |file| write_zeros(file, offset, len))
            }
            FolderOperation::SetLen { file, len } => {
                self.change_file(file, position, |file| file.set_len(len))
            }
        }
    }

    /// The state that operations change.
    fn state(&mut self, position: LogPosition) -> Result<&mut ReplayState, ReplayError> {
        let state = self.next.as_mut().or(self.current.as_mut());
        state.ok_or_else(|| damage_error(position, "it does not begin with a base").into())
    }

    /// The file of a number; a new one, if there is none.
    fn staged_file(
        &mut self,
        number: FileNumber,
        position: LogPosition,
    ) -> Result<Arc<dyn EngineFile>, ReplayError> {
        let staged = self.staged;
        let staging = self.staging;
        let state = self.state(position)?;
        if let Some(found) = state.files.get(&number) {
            return Ok(found.file.clone());
        }
        let staged = format!("{staged:016x}");
        let file = staging.create_file(&staged)?;
        // By a number, and not by the file's name, which may be that of another file in another folder, or of an earlier
        // one.
        state.files.insert(number, StagedFile { file: file.clone(), staged });
        self.staged += 1;
        Ok(file)
    }

    /// Changes a file. One that is not known was removed, unless a base is under way that has not come to it yet.
    fn change_file(
        &mut self,
        number: FileNumber,
        position: LogPosition,
        change: impl FnOnce(&dyn EngineFile) -> std::io::Result<()>,
    ) -> Result<(), ReplayError> {
        // Operations of a file may stand behind its removal: whoever has it open goes on writing.
        let is_known = self.next.is_some() || self.state(position)?.files.contains_key(&number);
        if is_known {
            change(&*self.staged_file(number, position)?)?;
        }
        Ok(())
    }

    fn set_name(
        &mut self,
        name: (LoggedFolder, String),
        file: Option<FileNumber>,
        position: LogPosition,
    ) -> Result<(), ReplayError> {
        let staging = self.staging;
        let state = self.state(position)?;
        let before = match file {
            Some(file) => state.names.insert(name, file),
            None => state.names.remove(&name),
        };
        let Some(before) = before.filter(|before| Some(*before) != file) else { return Ok(()) };
        if !state.names.values().any(|named| *named == before)
            && let Some(gone) = state.files.remove(&before)
        {
            staging.remove_file(&gone.staged)?;
        }
        Ok(())
    }

    fn end_base(&mut self) -> Result<(), ReplayError> {
        // The end of a base that repeats what is known already.
        let Some(mut state) = self.next.take() else { return Ok(()) };
        // Changes of files that were removed before the base came to them.
        let named: BTreeSet<_> = state.names.values().copied().collect();
        for (_, nameless) in state.files.extract_if(|number, _| !named.contains(number)) {
            self.staging.remove_file(&nameless.staged)?;
        }
        // Only now: as long as the new base was not whole, the log ended with the old files.
        if let Some(before) = self.current.replace(state) {
            self.remove_state(before)?;
        }
        Ok(())
    }

    fn discard_next(&mut self) -> Result<(), ReplayError> {
        self.next.take().map_or(Ok(()), |unfinished| self.remove_state(unfinished))
    }

    fn remove_state(&self, state: ReplayState) -> Result<(), ReplayError> {
        for file in state.files.into_values() {
            self.staging.remove_file(&file.staged)?;
        }
        Ok(())
    }

    fn finish(mut self, start: LogPosition, end: ChainEnd) -> Result<ReplayedFiles, ReplayError> {
        // A base that was never finished: nothing was acknowledged since it began.
        let needs_base = self.next.is_some();
        self.discard_next()?;
        let Some(state) = self.current.take() else {
            return Err(damage_error(start, "it has no base that is whole").into());
        };
        let mut files = Vec::new();
        for ((folder, name), number) in state.names {
            let Some(StagedFile { file, staged }) = state.files.get(&number) else { continue };
            // Durable before it gets its place.
            file.sync_file()?;
            files.push(ReplayedFile { folder, name, staged: staged.clone(), number });
        }
        self.staging.sync_folder()?;
        // Numbers of files that are gone are used again. Nothing more comes of those: the process that had
        // them open has ended.
        let next_number = state.files.keys().map(|number| number.0 + 1).max().unwrap_or(0);
        Ok(ReplayedFiles { files, end, next_number, needs_base, start })
    }
}

fn write_zeros(file: &dyn EngineFile, offset: u64, len: u64) -> std::io::Result<()> {
    let end = offset + len;
    // Behind the end of the file its length is enough.
    let within = file.size()?.min(end);
    let mut at = offset;
    while at < within {
        let piece = usize::try_from(within - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        file.write_at(ZEROS.get(..piece).unwrap_or_default(), at)?;
        at += piece as u64;
    }
    if file.size()? < end { file.set_len(end) } else { Ok(()) }
}
