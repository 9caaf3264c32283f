//! What a caller can do about a failure of a volume.

use vellum_types::{DecodeError, ErrorKind};

use super::VolumeError;

impl VolumeError {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Blob(error) | Self::Content { source: error, .. } => error.kind(),
            Self::Map(error) => error.kind(),
            Self::Slot(error) => error.kind(),
            Self::Revert(error) => error.kind(),
            Self::NoVolume(_)
            | Self::NoVolumeInStore(_)
            | Self::UnknownSnapshot(_)
            | Self::NoSnapshotThere { .. }
            | Self::NoSuchRef { .. }
            | Self::NoSession(_)
            | Self::NoRemotes
            | Self::NoMerge
            | Self::EmptyRemote(_)
            | Self::UnknownRetentionTag(_)
            | Self::NotPinned(_)
            | Self::NoSnapshotOfWorktree(_)
            | Self::NoSuchPath { .. } => ErrorKind::NotFound,
            Self::Nested { .. }
            | Self::NoRetentionRule
            | Self::BadPin(_)
            | Self::BadAnnotation(_)
            | Self::BadSetting(_)
            | Self::AlreadyInitialised(_)
            | Self::Ambiguous { .. }
            | Self::SeveralNamed { .. }
            | Self::BadExpression { .. }
            | Self::BadName { .. }
            | Self::NotLost(_)
            | Self::NotCopied(_)
            | Self::TooLong { .. }
            | Self::OtherSort { .. }
            | Self::OtherChunkSizes { .. }
            | Self::OtherVolume { .. }
            | Self::DependentStore { .. }
            | Self::WholeStore(_)
            | Self::OccupiedStore(_)
            | Self::SeveralRemotes(_)
            | Self::NotCommon { .. }
            | Self::BadHolder { .. }
            | Self::NoUserState
            | Self::NoCache
            | Self::WrongKind { .. } => ErrorKind::Usage,
            Self::CacheTooSmall { .. } => ErrorKind::NoSpace,
            Self::DeepPaths { .. } | Self::UnsureClaim { .. } => ErrorKind::Io,
            Self::Local { source, .. } => ErrorKind::from_io_error(source),
            // Above the other errors of decoding: a newer version is no damage, and the advice is another one.
            Self::Decode { source: DecodeError::Version(_), .. } => ErrorKind::Unsupported,
            Self::Damaged { .. }
            | Self::Decode { .. }
            | Self::RolledBack { .. }
            | Self::RefLost { .. }
            | Self::SeenUnreadable { .. }
            | Self::DamagedPlaces { .. }
            | Self::BadHydrationPolicies { .. }
            | Self::Foreign { .. }
            | Self::MissingRecord(_)
            | Self::RecordsLost(_)
            | Self::BadTree(_) => ErrorKind::Corrupt,
            Self::UnfitStore { .. } => ErrorKind::Unsupported,
            Self::Locked
            | Self::StateElsewhere(_)
            | Self::ChangedMarker { .. }
            | Self::WrongSecret
            | Self::RemovedSlot
            | Self::Revoked { .. }
            | Self::KeyChanged { .. }
            | Self::WrongClock { .. } => ErrorKind::Denied,
            Self::Exists { .. }
            | Self::PinnedAlready { .. }
            | Self::DirectoryGone { .. }
            | Self::MergeUnderWay { .. }
            | Self::InUse { .. }
            | Self::DeviceNeeded { .. }
            | Self::SlotsWithoutKey(_)
            | Self::NoKeySlots
            | Self::TooManySlots(_)
            | Self::Raced(_)
            | Self::SessionLost
            | Self::Leased { .. }
            | Self::Fenced { .. }
            | Self::CopiedWorktree { .. }
            | Self::WorktreeTakenOver { .. }
            | Self::Behind { .. } => ErrorKind::Conflict,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}
