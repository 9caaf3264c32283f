//! What the user is told when a command cannot do its work: what failed, on what, why, and what to do next.
//!
//! Invariant: every error has an exit code: 2 failed, 3 bad usage, 130 and 143 stopped by a signal. 0, 1 and 4 belong to
//! commands that did their work.

use std::io;

use vellum_bench::BenchError;
use vellum_checkout::CheckoutError;
use vellum_host::OperationStopped;
use vellum_library::OpenError;
use vellum_map::MapError;
use vellum_store::{BlobError, CachePart, StoreError};
use vellum_sync::SyncError;
use vellum_sync::plan::PlanRefusal;
use vellum_types::ErrorKind;
use vellum_volume::VolumeError;
use vellum_volume::operations::RevertError;

use crate::hooks::HookError;
use crate::mounting::MountingError;

/// Result of a command's parts.
pub type Result<T, E = CliError> = std::result::Result<T, E>;

/// A command failed.
pub const EXIT_FAILED: u8 = 2;
/// What was typed makes no sense.
pub const EXIT_USAGE: u8 = 3;

/// How a command that did its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
// In this order: of several outcomes, the greatest counts.
pub enum CommandOutcome {
    /// Done, nothing to remark.
    Done,
    /// Done, but for files that vanished meanwhile, which is no harm.
    Vanished,
    /// Done, and there are differences, damage or problems to look at.
    Findings,
    /// A program that the command was to run ended with this exit status.
    Program(u8),
}

impl CommandOutcome {
    /// The exit code that says so.
    pub fn exit_code(self) -> u8 {
        match self {
            // As with diff and grep, 1 means that something was found, so that a failure has a higher code.
            Self::Done => 0,
            Self::Findings => 1,
            Self::Vanished => 4,
            Self::Program(status) => status,
        }
    }

    /// `Findings` if there are any.
    pub fn from_findings(any: bool) -> Self {
        if any { Self::Findings } else { Self::Done }
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What was typed cannot be meant.
    #[error("{message}")]
    Usage {
        /// What is wrong with it.
        message: String,
        /// What to type instead; possibly empty.
        hint: String,
    },
    /// A volume's operation failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A worktree's operation failed.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
    /// A synchronisation failed as a whole.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// A mount could not be made or ended.
    #[error(transparent)]
    Mounting(#[from] MountingError),
    /// A bench failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The system refused something that the command itself did.
    #[error("cannot {action} {object}: {source}")]
    Io {
        /// What was tried, a verb.
        action: &'static str,
        /// On what.
        object: String,
        /// What the system said.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write the result: {0}")]
    Output(io::Error),
    /// Something does not exist, and another thing has a name that is near.
    #[error("{error}")]
    Misspelt {
        /// What does not exist.
        error: Box<CliError>,
        /// What was probably meant.
        nearest: String,
    },
    /// A step failed behind others that were done, and what these did is kept.
    #[error("{error}")]
    Unfinished {
        /// Why it failed.
        error: Box<CliError>,
        /// How to go on.
        resume: String,
    },
    /// A hook of the user stopped the command.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// The operation was stopped by Ctrl-C, with a word on how to go on.
    #[error("stopped")]
    Stopped {
        /// How to go on.
        resume: String,
    },
}

impl CliError {
    /// What was typed makes no sense; `hint` says what would.
    pub fn usage_error(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: hint.into() }
    }

    /// Says what the command tried when the system refused.
    pub fn io_error(action: &'static str, object: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let object = object.into();
        move |source| Self::Io { action, object, source }
    }

    /// Says what was probably meant, if anything is near.
    pub fn with_suggestion(self, nearest: Option<String>) -> Self {
        match nearest {
            Some(nearest) => Self::Misspelt { error: Box::new(self), nearest },
            None => self,
        }
    }

    /// Whether the reader of the output went away, which is no error.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Says how to go on, if the operation was stopped on request.
    pub fn with_resume_hint(self, how: impl Into<String>) -> Self {
        if self.kind() == ErrorKind::Interrupted { Self::Stopped { resume: how.into() } } else { self }
    }

    /// The exit code of a process that fails with this.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            ErrorKind::Usage => EXIT_USAGE,
            // An interruption without a signal of the user's, such as EINTR from a system call, is a failure like
            // any other.
            ErrorKind::Interrupted => crate::interrupt::signal_exit_code().unwrap_or(EXIT_FAILED),
            _ => EXIT_FAILED,
        }
    }

    /// The coarse kind, by which scripts can tell failures apart.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Usage { .. } => ErrorKind::Usage,
            Self::Volume(error) => error.kind(),
            Self::Checkout(error) => error.kind(),
            Self::Sync(error) => error.kind(),
            Self::Mounting(error) => error.kind(),
            Self::Bench(error) => error.kind(),
            Self::Io { source, .. } | Self::Output(source) => ErrorKind::from_io_error(source),
            Self::Misspelt { error, .. } | Self::Unfinished { error, .. } => error.kind(),
            Self::Hook(_) => ErrorKind::Denied,
            Self::Stopped { .. } => ErrorKind::Interrupted,
        }
    }

    /// Returns the messages of the error and of its causes, in one line.
    pub fn format_chain(&self) -> String {
        vellum_host::error_chain::format_error_chain(self)
    }

    /// Whether the store cannot be had, or takes nothing, rather than what was asked for being wrong.
    pub fn is_store_failure(&self) -> bool {
        let is_failure = matches!(
            self.kind(),
            ErrorKind::Io | ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::NoSpace | ErrorKind::Corrupt
        );
        // These are about local files and the command line, whatever their kind: the store has no part in them.
        is_failure && !matches!(self, Self::Usage { .. } | Self::Io { .. } | Self::Output(_))
    }

    /// What to do next; none where the message says it all.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => (!hint.is_empty()).then(|| hint.clone()),
            Self::Stopped { resume } | Self::Unfinished { resume, .. } => Some(resume.clone()),
            Self::Misspelt { error, nearest } => {
                let more = error.hint().map_or(String::new(), |hint| format!(" {hint}"));
                Some(format!("did you mean '{nearest}'?{more}"))
            }
            Self::Hook(error) => Some(error.hint()),
            Self::Volume(error) => volume_hint(error),
            // The worktree only passes on an error of its volume, and the volume's own hint is more precise.
            Self::Checkout(CheckoutError::Volume(error)) => volume_hint(error),
            Self::Checkout(error) => checkout_hint(error),
            Self::Sync(error) => sync_hint(error),
            Self::Mounting(error) => error.hint().or_else(|| kind_hint(error.kind())),
            Self::Bench(error) => bench_hint(error),
            Self::Io { .. } | Self::Output(_) => kind_hint(self.kind()),
        }
    }
}

/// How to go on after an operation that can be stopped on request.
pub trait ResumeHint<T> {
    /// Says how, if that is why it failed.
    fn with_resume_hint(self, how: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<CliError>> ResumeHint<T> for Result<T, E> {
    fn with_resume_hint(self, how: impl Into<String>) -> Result<T> {
        self.map_err(|error| error.into().with_resume_hint(how))
    }
}

/// What to do about a synchronisation that failed as a whole.
fn sync_hint(error: &SyncError) -> Option<String> {
    match error {
        SyncError::Volume(error) => volume_hint(error),
        SyncError::Refused(PlanRefusal::TooMany { .. }) => {
            Some("--max-delete allows more; -n shows what would go".into())
        }
        SyncError::Refused(PlanRefusal::Store { .. }) => {
            Some("--exclude leaves it alone; 'vellum info' and 'vellum gc' are for what is in it".into())
        }
        SyncError::Refused(_) => Some("--force-delete allows it; -n shows what would go".into()),
        other => kind_hint(other.kind()),
    }
}

/// What the volume or the system refused keeps the hints of its kind.
impl From<OperationStopped> for CliError {
    fn from(stopped: OperationStopped) -> Self {
        VolumeError::from(stopped).into()
    }
}

impl From<OpenError> for CliError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Volume(error) => Self::Volume(error),
            OpenError::Io { action, path, source } => {
                Self::io_error(action, path.display().to_string())(source)
            }
            other => Self::Mounting(other.into()),
        }
    }
}

/// What to do about a failure of a bench. Nothing of a volume is concerned.
fn bench_hint(error: &BenchError) -> Option<String> {
    let hint = match (error, error.kind()) {
        (BenchError::NotEmpty(_), _) => {
            "another program created files there meanwhile, which were not removed"
        }
        (BenchError::Content(_), _) => "find the cause before you measure again",
        (BenchError::Space { .. }, _) => "use fewer threads, or smaller or fewer files",
        (BenchError::HostVersion { .. }, _) => {
            "install the same version on all hosts, or name it with --remote-program"
        }
        (BenchError::Host { .. }, _) => {
            "each host needs this version of vellum ('--remote-program' names it) and the same directory"
        }
        (_, ErrorKind::NoSpace) => {
            "use fewer threads, or smaller or fewer files; what the bench had created was removed"
        }
        (_, ErrorKind::Denied) => "name a directory that you can write to",
        (BenchError::Format { .. }, ErrorKind::Unsupported) => {
            "measure again with this version, or compare with the one that wrote it"
        }
        _ => return None,
    };
    Some(hint.into())
}

/// What to do about a failure of a worktree.
fn checkout_hint(error: &CheckoutError) -> Option<String> {
    match error {
        CheckoutError::NoSuchPath { .. } => Some("paths are relative to the directory you stand in".into()),
        CheckoutError::InTheWay(_) => Some(
            "move them away, or take them out of the ignore file or the options of 'vellum snapshot'".into(),
        ),
        CheckoutError::NotEmpty(_) => Some("name one that does not exist yet, or an empty one".into()),
        CheckoutError::Absent { path, .. } => {
            Some(format!("in the root of the worktree, 'vellum hydrate {path}' brings it"))
        }
        CheckoutError::AbsentNowhere(_) => {
            Some("'vellum restore SNAP' brings the directory to a snapshot; what is absent stays so".into())
        }
        CheckoutError::AbsentList { .. } => Some(
            "move that file away; then 'vellum restore HEAD' brings back everything that is missing".into(),
        ),
        CheckoutError::LostSnapshot => {
            Some("'vellum snapshot' stores again what is here; 'vellum verify' says what is missing".into())
        }
        CheckoutError::Moved(_) => {
            Some("'vellum snapshot' records where it is now; name what is absent there".into())
        }
        CheckoutError::Interrupted(target) => Some(format!("'vellum restore {target}' finishes it")),
        CheckoutError::Engine { .. } => {
            Some("leave out --engine: the fastest one that works is taken".into())
        }
        other => kind_hint(other.kind()),
    }
}

/// Whether a failure can be that of an index of which a part is damaged or lost: it does not say where a blob is.
fn is_index_failure(error: &VolumeError) -> bool {
    let is_unknown =
        |error: &BlobError| matches!(error, BlobError::NotFound { .. } | BlobError::Index { .. });
    match error {
        VolumeError::Damaged { object, .. } => object == "index",
        VolumeError::Blob(error) | VolumeError::Content { source: error, .. } => is_unknown(error),
        VolumeError::Map(MapError::Load { source, .. }) => {
            source.downcast_ref::<BlobError>().is_some_and(is_unknown)
        }
        _ => false,
    }
}

/// What to do about a failure of the volume, where there is something better to say than its kind.
pub fn volume_hint(error: &VolumeError) -> Option<String> {
    let hint = match error {
        VolumeError::NoCache => "set HOME, or XDG_CACHE_HOME",
        VolumeError::CacheTooSmall { part: CachePart::Content, .. } => {
            "'vellum cache --set-size SIZE' lets it take more; 'vellum pins' shows what is pinned"
        }
        VolumeError::CacheTooSmall { part: CachePart::Nodes, .. } => {
            "'vellum cache --set-node-size SIZE' lets it take more; 'vellum pins' shows what is pinned"
        }
        VolumeError::StateElsewhere(_) => {
            "if you made it, HOME or XDG_STATE_HOME was another one; or name the directory that has the state with '-C'. What \
             lies in the worktree's directory does not tell: whoever works there can write it"
        }
        VolumeError::ChangedMarker { marker, state } => {
            let holder = state.parent().unwrap_or(state).display();
            return Some(format!(
                "look at what was done there, and take {} away; then 'vellum -C {holder} worktree relocate' writes the marker \
                 again",
                marker.display()
            ));
        }
        VolumeError::BadHolder { .. } => "name a directory that only you can write to",
        VolumeError::NoUserState => "set HOME, or XDG_STATE_HOME",
        VolumeError::NoVolume(_) => "'vellum init' makes one here; '-C DIR' looks elsewhere",
        VolumeError::Nested { .. } => {
            "choose a directory outside of it; volumes inside volumes are not supported"
        }
        VolumeError::AlreadyInitialised(_) => "'vellum info' describes it",
        VolumeError::UnknownSnapshot(_) => "'vellum history --all' and 'vellum tag list' show what there is",
        VolumeError::NoSnapshotThere { .. } => "'vellum history --all' shows what there is",
        VolumeError::Ambiguous { .. } => "type more of the id",
        VolumeError::SeveralNamed { .. } => {
            "type the id; 'vellum tag remove' or 'vellum worktree rename' takes one of the names away"
        }
        error if is_index_failure(error) => {
            "'vellum verify --rebuild-index' makes the index anew from the packs; 'vellum verify --all' shows whether that \
             is of use, and what else is damaged"
        }
        VolumeError::MissingRecord(_) | VolumeError::BadTree(_) | VolumeError::Damaged { .. } => {
            "'vellum verify --all' lists everything that is damaged, and which files it concerns"
        }
        VolumeError::RecordsLost(lost) => {
            let without: String = lost.iter().map(|record| format!(" --without {}", record.id)).collect();
            return Some(format!(
                "if a copy of the store has these objects, put them back into its snapshots/; if they are lost for \
                 good, 'vellum gc run{without}' goes on without them, and deletes what only they need"
            ));
        }
        VolumeError::NotLost(_) => {
            "the message of 'vellum gc run' names the ids; 'vellum forget' takes a snapshot that can be read out of \
             the history"
        }
        VolumeError::NoRetentionRule => {
            "for example 'vellum forget --keep-daily 7 --keep-weekly 4 --dry-run'"
        }
        VolumeError::PinnedAlready { id, .. } => {
            return Some(format!("'vellum unpin --snapshot {id}' takes that pin away"));
        }
        VolumeError::NotPinned(_) => "'vellum pins' lists the pins",
        VolumeError::UnknownRetentionTag(_) => "'vellum tag list' shows the tags",
        VolumeError::NoSnapshotOfWorktree(_) => {
            "'vellum history --all' shows in which worktrees snapshots were made"
        }
        VolumeError::NoSession(_) => "'vellum gc run' names the sessions that it waits for",
        VolumeError::RolledBack { note, .. } | VolumeError::RefLost { note, .. } => {
            return Some(format!(
                "somebody removed objects of the store, or replaced them by older ones. If you did, as by putting a \
                 backup of the store back, delete {} to take the store as it is now",
                note.display()
            ));
        }
        VolumeError::DamagedPlaces { list, .. } => {
            return Some(format!(
                "move {} away; then run 'vellum -C DIR worktree relocate' for each directory DIR in which a state is, \
                 named with 'init --state DIR'",
                list.display()
            ));
        }
        VolumeError::SeenUnreadable { note, .. } => {
            return Some(format!(
                "delete {} to start over; an earlier rollback of the store can then no longer be detected",
                note.display()
            ));
        }
        VolumeError::BadHydrationPolicies { file, .. } => {
            return Some(format!(
                "delete {} to go on without policies; 'vellum hydrate --policy' sets them again",
                file.display()
            ));
        }
        // If a disk is not mounted, its mountpoint is an empty directory: the store seems to be gone, or to be
        // another one.
        VolumeError::Foreign { .. }
        | VolumeError::Store(StoreError::Address { kind: ErrorKind::NotFound, .. }) => {
            "check that its disk is mounted; if the store was moved, 'vellum worktree relocate --store URL' says where it \
             is now"
        }
        VolumeError::UnfitStore { store, .. } if store.starts_with("sftp://") => {
            "a volume that was made by a path cannot be used over SFTP: on the machine that has its directory, 'vellum remote \
             add NAME sftp://…' and 'vellum push NAME' copy it into a store that can; 'vellum objbench URL' shows what a \
             store keeps"
        }
        VolumeError::UnfitStore { .. } => {
            "use a service that keeps conditional writes, such as Amazon S3, Cloudflare R2 or SeaweedFS from 4.17; or \
             add 'single-writer' to the address ('s3://bucket/folder?single-writer') if one machine writes at a time; \
             'vellum objbench URL' shows what a store keeps"
        }
        VolumeError::WrongClock { .. } => {
            "set it right, or that of the service: snapshots would have wrong times, and services refuse requests"
        }
        VolumeError::NoVolumeInStore(_) => "'vellum init --store URL' makes one there",
        VolumeError::OccupiedStore(_) => "name a folder that is empty",
        VolumeError::DependentStore { .. } => {
            "'vellum pull --content', in the clone that it is the store of, copies the rest into it"
        }
        VolumeError::OtherVolume { .. } => {
            "name a folder that is empty, or one to which this volume was pushed"
        }
        VolumeError::MergeUnderWay { .. } => {
            "'vellum merge --continue' finishes it, 'vellum merge --abort' aborts it"
        }
        VolumeError::NoMerge => "'vellum merge SNAP' begins one",
        VolumeError::NotCommon { .. } => "leave out --base: the best common snapshot is found",
        VolumeError::NoRemotes => "'vellum remote add origin URL' adds one",
        VolumeError::EmptyRemote(name) => return Some(format!("'vellum push {name}' sets it up")),
        VolumeError::SeveralRemotes(_) => "name the one that is meant",
        VolumeError::OtherSort { encrypted: true, .. } => "leave out --plain",
        VolumeError::OtherSort { encrypted: false, .. } => {
            "with --plain it is taken: whoever can read that store then reads your files; if the volume that you \
             made there was encrypted, somebody exchanged it"
        }
        VolumeError::OtherChunkSizes { .. } => {
            "leave out --chunk-size: what is stored there already is found again only if all cut alike"
        }
        VolumeError::Locked => {
            "the file .vellum/key is missing: attach a new directory with 'vellum init --store'; a mount takes \
             'key-file=FILE'"
        }
        VolumeError::RemovedSlot => {
            "a machine that has the volume gives a new secret: 'vellum key add', or 'vellum device add NAME'"
        }
        VolumeError::Revoked { .. } => {
            "if that was a mistake, a machine that has the volume adds a device: 'vellum device add NAME', and 'vellum \
             key open' takes its code"
        }
        VolumeError::KeyChanged { .. } => {
            "'vellum key open' asks for a passphrase, a recovery code or the code of a device, which give the new key"
        }
        VolumeError::SlotsWithoutKey(_) => {
            "where the secret of each is at hand, 'vellum key open' prepares it; or remove them: 'vellum key remove ID', \
             'vellum device revoke NAME'"
        }
        VolumeError::NoKeySlots => "'vellum key add --recovery' adds one",
        VolumeError::DeviceNeeded { name, .. } => {
            return Some(format!("'vellum device revoke --force {name}' revokes it nevertheless"));
        }
        VolumeError::TooManySlots(_) => {
            "'vellum key list' shows all key slots, and 'vellum key remove ID' removes one"
        }
        VolumeError::WrongSecret => "passphrases are case-sensitive; a recovery code works too",
        VolumeError::NoSuchRef { kind: "tag", .. } => "'vellum tag list' shows all tags",
        VolumeError::NoSuchRef { kind: "worktree", .. } => {
            "'vellum worktree list' shows all worktrees, and 'vellum fork' makes one"
        }
        VolumeError::NoSuchRef { kind: "remote", .. } => "'vellum remote list' shows all remotes",
        VolumeError::NoSuchRef { kind: "device", .. } => "'vellum device list' shows all devices",
        // All other kinds are matched above: what is left are key slots.
        VolumeError::NoSuchRef { .. } => "'vellum key list' shows all key slots",
        VolumeError::DeepPaths { .. } => {
            "'vellum ls', 'vellum verify' and 'vellum export --to' work with it; if it was made by mistake, remove the \
             directory"
        }
        VolumeError::NoSuchPath { .. } => {
            "paths are relative to the directory you stand in; 'vellum ls SNAP -R' lists all"
        }
        VolumeError::CopiedWorktree { .. } | VolumeError::WorktreeTakenOver { .. } => {
            "'vellum worktree adopt --as NAME' makes this directory a worktree of its own; its files stay as they are"
        }
        VolumeError::DirectoryGone { name, .. } => {
            return Some(format!(
                "choose another name with --name; 'vellum worktree remove {name}' takes the one that is gone off the list"
            ));
        }
        VolumeError::NotCopied(_) => "'vellum fork NAME --to DIR' makes another worktree",
        VolumeError::Raced(_) | VolumeError::SessionLost => "run the command again",
        VolumeError::Leased { worktree, place, .. } => {
            return Some(format!(
                "work there, or end that mount with 'vellum umount'; a lease that is not renewed is taken over by the \
                 next 'vellum mount'. 'vellum mount --worktree {worktree} --take-over' does not wait: what was not \
                 published then stays in {place}"
            ));
        }
        VolumeError::Fenced { worktree, place, .. } => {
            return Some(format!(
                "what was written here and not published stays in {place}: unmount, then 'vellum worktree keep \
                 {worktree} NEW' makes a worktree of its own of it"
            ));
        }
        VolumeError::UnsureClaim { .. } => {
            "changes go on when the engine of the worktree's log answers; reading works meanwhile"
        }
        VolumeError::Decode { source: vellum_types::DecodeError::Version(_), .. } => {
            "it was written by a newer Vellum: update this one"
        }
        VolumeError::Store(StoreError::Address { kind: ErrorKind::Unsupported, .. }) => {
            "a directory of another machine is sftp://HOST/PATH; 'vellum sync' copies over ssh"
        }
        VolumeError::Revert(error) => revert_hint(error),
        other => return kind_hint(other.kind()),
    };
    Some(hint.into())
}

fn revert_hint(error: &RevertError) -> &'static str {
    match error {
        RevertError::NothingToUndo
        | RevertError::NothingToRedo
        | RevertError::NoSuchOperation { .. }
        | RevertError::NothingLeft { .. } => "'vellum operations' lists what was done",
        RevertError::ChangedSince { .. } => "undo that one first; 'vellum operations' lists what was done",
        // What is impossible says why, and must not stand in the way of what was done before.
        RevertError::Impossible { .. } | RevertError::Collected { .. } => {
            "'vellum undo NUMBER' takes another operation back; 'vellum operations' lists them"
        }
    }
}

/// What to do about any failure of a kind.
fn kind_hint(kind: ErrorKind) -> Option<String> {
    let hint = match kind {
        ErrorKind::Corrupt => "'vellum verify --all' lists everything that is damaged",
        ErrorKind::NoSpace => {
            "free space and run the command again: nothing that was acknowledged is lost, and 'vellum gc run' frees \
             what forgotten snapshots held"
        }
        ErrorKind::Unsupported => {
            "it was written by a newer Vellum, or needs what this build or the store cannot do"
        }
        ErrorKind::Denied => "check the permissions, and who runs the command",
        // No single advice fits all errors of these kinds.
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Usage
        | ErrorKind::Interrupted
        | ErrorKind::Io => return None,
    };
    Some(hint.into())
}

/// The kind that has this code in JSON; of an unknown one, the kind that promises nothing.
pub fn parse_error_code(code: &str) -> ErrorKind {
    ErrorKind::ALL.into_iter().find(|kind| vellum_json::error_code(*kind) == code).unwrap_or(ErrorKind::Io)
}

#[cfg(test)]
mod tests;
