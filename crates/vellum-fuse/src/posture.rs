//! How a mount stands to other machines: what its kernel may cache, and which requests it therefore sends.
//!
//! Invariant: everything that differs between a mount of one machine's own and one of a shared worktree is decided here.

use std::time::Duration;

use crate::wire::{flags, open_flags};

/// The features of the kernel that every mount selects, if they are offered.
const COMMON_FEATURES: [u64; 14] = [
    flags::ASYNC_READ,
    // The kernel looks up `.` and `..` to find a node that it has forgotten: for file handles, and NFS.
    flags::EXPORT_SUPPORT,
    // The request states whether an access control list clears the set-group-id bit.
    flags::SETXATTR_EXT,
    flags::BIG_WRITES,
    // Whether the umask applies depends on the default ACL of the directory, which only the filesystem knows.
    flags::DONT_MASK,
    flags::POSIX_ACL,
    flags::DO_READDIRPLUS,
    flags::READDIRPLUS_AUTO,
    flags::ASYNC_DIO,
    flags::PARALLEL_DIROPS,
    // The kernel also caches that a file has no capabilities; otherwise it sends `getxattr` before each write. It
    // drops this when it asks for the attributes again.
    flags::HANDLE_KILLPRIV_V2,
    // The kernel drops pages only on a notification, not when a modification time changes.
    flags::EXPLICIT_INVAL_DATA,
    flags::MAX_PAGES,
    flags::INIT_EXT,
];

/// Those of a mount whose kernel is the only one that changes what it shows.
const EXCLUSIVE_FEATURES: [u64; 4] = [
    // Opening and closing need no work here. The kernel sends neither request, which saves two per file.
    flags::NO_OPEN_SUPPORT,
    flags::NO_OPENDIR_SUPPORT,
    flags::WRITEBACK_CACHE,
    flags::CACHE_SYMLINKS,
];

/// Those of a mount that shows what other machines change. Not among them is the write-back cache: with it, the kernel
/// never takes over the size and times that another machine has set.
const SHARED_FEATURES: [u64; 4] = [
    // Locks hold for programs on all machines.
    flags::POSIX_LOCKS,
    flags::FLOCK_LOCKS,
    // Opening and truncating are one operation for all machines.
    flags::ATOMIC_O_TRUNC,
    // Files are opened with direct I/O; without this, they could not be mapped with `MAP_SHARED`.
    flags::DIRECT_IO_ALLOW_MMAP,
];

/// Those of a mount that shows what others have published. Locks are left to its kernel: who reads there shares them with
/// nobody elsewhere.
const FOLLOWED_FEATURES: [u64; 1] = [flags::DIRECT_IO_ALLOW_MMAP];

/// How long the kernel may cache names and attributes of what others have published. A program that reads many files of one
/// tree saves most of its look-ups, and what is shown gets no older than that.
pub(crate) const FOLLOWED_TIMEOUT: Duration = Duration::from_secs(1);

/// Who changes what a mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MountPosture {
    /// Its own kernel alone: the kernel may cache names, attributes and content without limit.
    #[default]
    Exclusive,
    /// Other machines, too: the kernel caches nothing that an answer does not allow, and whoever forwards answers to the kernel
    /// has it drop that again.
    Shared,
    /// Other machines alone: what they have published is shown instead from time to time, whole.
    Followed,
}

impl MountPosture {
    /// The features that are selected if the kernel offers them.
    pub(crate) fn wanted_features(self) -> u64 {
        let own: &[u64] = match self {
            Self::Exclusive => &EXCLUSIVE_FEATURES,
            Self::Shared => &SHARED_FEATURES,
            Self::Followed => &FOLLOWED_FEATURES,
        };
        COMMON_FEATURES.iter().chain(own).fold(0, |all, flag| all | flag)
    }

    /// How long the kernel may cache what would be valid for `timeout` if no other machine changed it.
    pub(crate) fn limit_timeout(self, timeout: Duration) -> Duration {
        match self {
            Self::Exclusive => timeout,
            Self::Shared => Duration::ZERO,
            Self::Followed => timeout.min(FOLLOWED_TIMEOUT),
        }
    }

    /// The flags in the answer to a request that opens a file.
    pub(crate) fn open_file_flags(self) -> u32 {
        match self {
            Self::Exclusive => open_flags::KEEP_CACHE,
            // What one program reads must be what another machine has just written. And of a tree that replaces another,
            // no page of the one before may be left.
            Self::Shared | Self::Followed => open_flags::DIRECT_IO,
        }
    }

    /// Whether the kernel caches anything that has to be dropped before an answer that makes it stale.
    pub(crate) fn has_kernel_caches(self) -> bool {
        match self {
            Self::Exclusive => true,
            Self::Shared | Self::Followed => false,
        }
    }

    /// Whether the kernel keeps the times of files by itself, and sends them when it writes back what programs have changed.
    pub(crate) fn keeps_times_in_kernel(self) -> bool {
        match self {
            Self::Exclusive => true,
            Self::Shared | Self::Followed => false,
        }
    }

    /// Whether requests may come through rings. A request that waits for a lock keeps its slot, and the request that gives
    /// up the lock needs one, too.
    pub(crate) fn may_use_rings(self) -> bool {
        match self {
            Self::Exclusive | Self::Followed => true,
            Self::Shared => false,
        }
    }

    /// Whether the place of what is appended is chosen when it is written, not by the kernel, which does not know what
    /// other machines have appended.
    pub(crate) fn decides_append_offset(self) -> bool {
        match self {
            Self::Exclusive | Self::Followed => false,
            Self::Shared => true,
        }
    }

    /// Whether files and directories are opened by requests. Otherwise the kernel opens them by itself, after it has once
    /// been answered that it can.
    pub(crate) fn answers_open(self) -> bool {
        match self {
            Self::Exclusive => false,
            Self::Shared | Self::Followed => true,
        }
    }

    /// Whether what is mounted is replaced as a whole while it is mounted.
    pub(crate) fn replaces_trees(self) -> bool {
        match self {
            Self::Exclusive | Self::Shared => false,
            Self::Followed => true,
        }
    }

    /// Bytes that a listing with attributes has at most. A server keeps answers until their client has them.
    pub(crate) fn listing_max(self) -> usize {
        match self {
            Self::Exclusive | Self::Followed => usize::MAX,
            Self::Shared => SHARED_LISTING_MAX,
        }
    }
}

/// Bytes of a listing with attributes in a shared mount: some 700 names.
const SHARED_LISTING_MAX: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_its_own_selects_what_it_always_has() {
        assert_eq!(MountPosture::Exclusive.wanted_features(), 0x73d7_e071);
    }

    #[test]
    fn a_shared_mount_lets_the_kernel_open_and_cache_nothing_by_itself() {
        let wanted = MountPosture::Shared.wanted_features();
        let without = flags::WRITEBACK_CACHE | flags::NO_OPEN_SUPPORT | flags::NO_OPENDIR_SUPPORT;
        assert_eq!(wanted & (without | flags::CACHE_SYMLINKS), 0);
        assert_eq!(MountPosture::Shared.limit_timeout(Duration::from_secs(9)), Duration::ZERO);
    }

    #[test]
    fn a_followed_tree_is_cached_for_a_second_and_locked_in_its_own_kernel() {
        let wanted = MountPosture::Followed.wanted_features();
        assert_eq!(wanted & (flags::POSIX_LOCKS | flags::FLOCK_LOCKS | flags::CACHE_SYMLINKS), 0);
        assert_eq!(wanted & (flags::NO_OPEN_SUPPORT | flags::NO_OPENDIR_SUPPORT), 0);
        assert_eq!(MountPosture::Followed.limit_timeout(Duration::from_secs(9)), Duration::from_secs(1));
        assert_eq!(MountPosture::Followed.limit_timeout(Duration::ZERO), Duration::ZERO);
    }
}
