//! Errors of a run as a whole, and of one entry of it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use vellum_host::OperationStopped;
use vellum_host::beneath::BeneathError;
use vellum_host::clone::CloneError;
use vellum_host::escape::EscapedPath;
use vellum_types::ErrorKind;
use vellum_volume::VolumeError;
use vellum_volume::own_place::ReservedDirectory;

use crate::model::listing::ListingError;
use crate::plan::PlanRefusal;

/// The result of an operation of a run.
pub type Result<T, E = SyncError> = std::result::Result<T, E>;

/// An error of a run.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A system call on an entry below one of the two roots failed.
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    /// Content could not be copied.
    #[error(transparent)]
    Content(#[from] CloneError),
    /// A file could not be read or written.
    #[error("cannot {action} the file: {source}")]
    Io {
        /// The operation, a verb.
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file differs from its listing.
    #[error("it changed while it was being read: run the command again")]
    Changed,
    /// The file was removed after it was listed.
    #[error("it vanished before it was read")]
    Vanished,
    /// A symlink that is to be followed has no target.
    #[error("the target of the symlink cannot be read: {0}")]
    Dangling(BeneathError),
    /// A symlink that is followed leads to a directory that contains it.
    #[error("the symlink leads to a directory that it is in, and is not followed a second time")]
    Cycle,
    /// A symlink at the destination that would be treated as a directory leads out of it.
    #[error(
        "the symlink leads out of the destination, or is absolute, and --keep-dirlinks does not follow it: mount the \
         directory there instead (mount --bind)"
    )]
    LinkOutside,
    /// An object differs from the version that was listed.
    #[error(
        "the object was changed by someone else after it was listed, and was left as it is: run the command again"
    )]
    ObjectChanged,
    /// An entry has the name although the listing has none.
    #[error(
        "something else has this name: it appeared meanwhile, or the destination takes two names for one"
    )]
    Taken,
    /// The service does not know an upload in parts any more.
    #[error("the service has lost the parts of it that were uploaded: run the command again")]
    UploadLost,
    /// The written content differs from the content that was read.
    #[error("what was written is not what was read")]
    Unequal,
    /// A file that was overwritten in place is neither the old version nor the new one.
    #[error(
        "the file is partly written over and is neither its old version nor the new one: run the command again ({0})"
    )]
    PartlyWritten(Box<SyncError>),
    /// A listing is inconsistent.
    #[error(transparent)]
    Listing(#[from] ListingError),
    /// Rules cannot be applied.
    #[error(transparent)]
    Rules(#[from] crate::rules::RuleError),
    /// The plan may not be carried out.
    #[error("{0}")]
    Refused(PlanRefusal),
    /// An end is neither a file nor a directory, or does not exist.
    #[error("{} '{}': {why}", .what, EscapedPath(.path))]
    End {
        /// The end, a noun.
        what: &'static str,
        /// Its path as typed.
        path: Vec<u8>,
        /// The problem.
        why: String,
    },
    /// An operation on the snapshot's volume failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The other side sent something invalid.
    #[error(transparent)]
    Wire(#[from] crate::remote::wire::WireError),
    /// The other side reported an error.
    #[error("{message}")]
    Remote {
        /// The error's kind.
        kind: ErrorKind,
        /// Its message.
        message: String,
    },
    /// The connection is lost.
    #[error("the connection is gone")]
    Lost,
    /// The connection is lost, with the name of the host.
    #[error("the connection to '{host}' is gone: {why}")]
    LostTo {
        /// The host.
        host: String,
        /// The reason.
        why: String,
    },
    /// The archive of a two-way run cannot be saved.
    #[error(transparent)]
    Archive(#[from] crate::two_way::ArchiveStoreError),
    /// A version of a conflict cannot be kept.
    #[error(transparent)]
    Rename(#[from] crate::two_way::RenameError),
    /// Entries are to be removed at a source that cannot be changed.
    #[error("files cannot be removed from this source")]
    Unchangeable,
    /// A stop was requested.
    #[error("stopped")]
    Stopped,
}

impl SyncError {
    /// The error's kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Beneath(error) => error.kind(),
            Self::Content(error) => error.kind(),
            Self::Io { source, .. } => ErrorKind::from_io_error(source),
            Self::Changed
            | Self::LinkOutside
            | Self::ObjectChanged
            | Self::UploadLost
            | Self::Taken
            | Self::Dangling(_)
            | Self::Cycle
            | Self::Rename(_) => ErrorKind::Conflict,
            Self::Vanished => ErrorKind::NotFound,
            Self::Unequal | Self::Listing(_) => ErrorKind::Corrupt,
            Self::Refused(_) | Self::End { .. } => ErrorKind::Conflict,
            Self::Rules(_) | Self::Unchangeable => ErrorKind::Usage,
            Self::Volume(error) => error.kind(),
            Self::Wire(crate::remote::wire::WireError::Version(..)) => ErrorKind::Unsupported,
            Self::Wire(_) | Self::Lost | Self::LostTo { .. } => ErrorKind::Io,
            Self::Remote { kind, .. } => *kind,
            Self::Archive(error) => error.kind(),
            Self::Stopped => ErrorKind::Interrupted,
            Self::PartlyWritten(error) => error.kind(),
        }
    }

    /// Whether all further writes would fail as well.
    #[must_use]
    pub fn is_final(&self) -> bool {
        let errno = match self {
            Self::PartlyWritten(error) => return error.is_final(),
            // It was asked again and again for minutes.
            Self::Volume(VolumeError::Store(error)) => return error.kind() == ErrorKind::Io,
            Self::Beneath(error) => error.errno(),
            Self::Io { source, .. } | Self::Content(CloneError::Io { source, .. }) => {
                Errno::from_io_error(source)
            }
            _ => None,
        };
        matches!(errno, Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS))
    }

    /// A path is, or is inside, a directory that is reserved for Vellum.
    #[must_use]
    pub fn for_own_place(path: &Path, place: &ReservedDirectory) -> Self {
        let here = if place.path() == path { "it is" } else { "it lies in" };
        Self::End {
            what: "refused to write to or delete from",
            path: path.as_os_str().as_bytes().to_vec(),
            why: format!("{here} {}, which only Vellum may change", place.display_name()),
        }
    }

    /// Adds the operation to an error of reading or writing content.
    pub fn wrap_io_error(action: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// Returns the messages of the error and of its causes, in one line.
    #[must_use]
    pub fn format_chain(&self) -> String {
        vellum_host::error_chain::format_error_chain(self)
    }
}

impl From<OperationStopped> for SyncError {
    fn from(_: OperationStopped) -> Self {
        Self::Stopped
    }
}
