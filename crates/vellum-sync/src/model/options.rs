//! The options of a run: plain data, the same for both sides, and sent over the wire as they are.
//!
//! Invariant: an option describes an effect, independent of its form on a command line. Deliberately absent: rules on
//! names (see `rules`).

mod basis;

pub use basis::{BASIS_DIRS_MAX, Basis, BasisUsage, resolve_missing_path};

use serde::{Deserialize, Serialize};

use crate::ends::SyncSide;
use crate::ends::stored_stat::STORED_STAT;

/// The prefix of extended attributes that hold ACLs.
pub(crate) const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// Attributes that the filesystem itself maintains, and that are never copied.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// How often a file that was refused or cut off is tried again by default: once, then it is reported.
pub const RETRIES: u32 = 1;

/// All options of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncOptions {
    /// What is copied.
    pub preserve: PreserveOptions,
    /// When two files count as equal, and which are left alone.
    pub compare: CompareOptions,
    /// What is deleted at the destination.
    pub delete: DeleteOptions,
    /// How files are written.
    pub writing: WriteOptions,
    /// Basis directories.
    #[serde(default)]
    pub basis: Option<Basis>,
    /// How attributes are changed in transit.
    pub changes: AttributeRewrites,
    /// Limits on the use of the machine and the connection.
    pub effort: EffortOptions,
    /// Files that were renamed at the source are renamed at the destination instead of being sent.
    pub detect_renames: bool,
    /// Directories on other filesystems are created, and their entries are not listed.
    pub one_filesystem: bool,
    /// Named paths that do not exist are not reported.
    #[serde(default)]
    pub ignore_missing: bool,
    /// Listings contain the change time of each file, and the time at which they began.
    #[serde(default)]
    pub stamps: bool,
    /// Files are removed at the source once the destination has them; needs `stamps`, which then identify files.
    #[serde(default)]
    pub moves: bool,
}

/// What is copied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PreserveOptions {
    /// Entries below directories; without it directories are left out.
    pub recursive: bool,
    /// Modification times.
    pub times: bool,
    /// Modification times of directories are not copied.
    pub omit_dir_times: bool,
    /// Modification times of symlinks are not copied.
    pub omit_link_times: bool,
    /// Mode bits.
    pub modes: bool,
    /// The executable bits, where modes are not copied.
    pub executability: bool,
    /// Owners, where the receiving user may set them.
    pub owners: bool,
    /// Groups, where the receiving user may set them.
    pub groups: bool,
    /// The receiving user, unless it is root; known once the destination was listed.
    #[serde(default)]
    pub receiver: Option<UnprivilegedReceiver>,
    /// Owners and groups keep their numbers, even if the other side has the same names with other numbers.
    pub numeric_ids: bool,
    /// Directories are copied even though their entries are not, where only part of a tree is copied.
    pub dirs: bool,
    /// Directories that would be empty are left out.
    pub prune_empty: bool,
    /// The directories above named paths do not get the source's attributes.
    #[serde(default)]
    pub bare_way: bool,
    /// What happens with symlinks.
    pub symlinks: SymlinkHandling,
    /// Which symlinks are replaced by their targets.
    pub follow: FollowSymlinks,
    /// A symlink to a directory at the destination is treated as that directory where the source has a directory.
    #[serde(default)]
    pub keep_dir_links: bool,
    /// With `keep_dir_links`: the paths of those symlinks, known once both sides were listed.
    #[serde(default)]
    pub dir_links: Vec<Vec<u8>>,
    /// Symlinks that lead out of the copied tree are left out.
    pub safe_links: bool,
    /// Device nodes.
    pub devices: bool,
    /// Fifos and sockets.
    pub specials: bool,
    /// Hard links.
    pub hard_links: bool,
    /// Extended attributes except ACLs.
    pub xattrs: bool,
    /// ACLs.
    pub acls: bool,
    /// Which sides store owners, modes and special files in an extended attribute.
    #[serde(default)]
    pub stored_stat: StoredStatSides,
    /// Access times.
    pub atimes: bool,
    /// Runs of zeros become holes. Existing holes are kept without this option.
    pub sparse: bool,
}

/// Which sides store owners, modes and special files in an extended attribute (see `stored_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoredStatSides {
    /// The source.
    pub source: bool,
    /// The destination.
    pub destination: bool,
}

impl PreserveOptions {
    /// Whether a side lists extended attributes or ACLs.
    #[must_use]
    pub fn lists_xattrs(&self, side: SyncSide) -> bool {
        self.xattrs || self.acls || side == SyncSide::Destination && self.stored_stat.destination
    }

    /// Whether an extended attribute of the destination is replaced or removed according to the source.
    #[must_use]
    pub fn sets_xattr(&self, name: &[u8]) -> bool {
        match name {
            _ if name.starts_with(ACL_PREFIX) => self.acls,
            STORED_STAT if self.stored_stat.destination => true,
            _ => self.xattrs && !name.starts_with(SYSTEM_PREFIX),
        }
    }
}

/// A user other than root: it sets only groups of which it is a member, and only on its own files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnprivilegedReceiver {
    /// The user's number.
    pub user: u32,
    /// The groups of which it is a member, sorted.
    pub groups: Vec<u32>,
}

/// What happens with symlinks of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SymlinkHandling {
    /// They are left out.
    #[default]
    Skip,
    /// They are copied as symlinks.
    Keep,
}

/// Which symlinks of the source are followed. Those of the destination are followed only with
/// [`keep_dir_links`](PreserveOptions::keep_dir_links).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FollowSymlinks {
    /// None.
    #[default]
    Never,
    /// Symlinks to directories.
    Dirs,
    /// Symlinks that lead out of the copied tree.
    Outside,
    /// All.
    Always,
}

/// When two files count as equal, and which files are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CompareOptions {
    /// What is compared.
    pub by: CompareMethod,
    /// Times whose difference is at most this count as equal, nanoseconds.
    pub modify_window: u64,
    /// Files that are newer at the destination are not replaced.
    pub update: bool,
    /// Nothing is created that does not exist.
    pub existing: bool,
    /// Nothing is changed that exists.
    pub ignore_existing: bool,
}

impl CompareOptions {
    /// Raises the tolerance for times that a filesystem cannot distinguish.
    pub fn widen_tolerance(&mut self, window: u64) {
        self.modify_window = self.modify_window.max(window);
    }
}

/// What is compared of two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CompareMethod {
    /// Size and modification time.
    #[default]
    SizeAndTime,
    /// Size alone.
    Size,
    /// Nothing: every file is sent.
    Nothing,
    /// Content, if the sizes are equal.
    Content,
}

/// What is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeleteOptions {
    /// Whether deletion takes place, and when.
    pub when: DeletePhase,
    /// The largest number of deletions; if a plan has more, nothing is deleted.
    pub max: Option<DeleteLimit>,
    /// Allows deletion of more than half of the destination, or of all of it if the source is empty.
    pub force: bool,
    /// Entries that rules exclude are deleted, too.
    pub excluded: bool,
    /// Named or listed paths that do not exist at the source are deleted at the destination.
    #[serde(default)]
    pub missing: bool,
    /// A directory that an entry of another type replaces may be deleted with its entries, even if deletion is off.
    pub obstacles: bool,
}

/// When entries that the source lacks are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DeletePhase {
    /// Never.
    #[default]
    Never,
    /// Before anything is written: needs the least space.
    Before,
    /// After everything is written: no content is deleted before new content is complete.
    After,
}

/// A limit of deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeleteLimit {
    /// A number of entries.
    Entries(u64),
    /// A share of the destination's entries, in percent.
    Percent(u8),
}

/// How files are written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WriteOptions {
    /// Whether the old file's blocks are used as a basis.
    pub delta: DeltaMode,
    /// The old file is overwritten in place: readers, and a killed run, can leave a mixture of old and new content.
    pub in_place: bool,
    /// Files that are longer at the source are extended in place; their beginning is not compared.
    pub append: bool,
    /// With `append`: the beginning is compared, and differences are written, too.
    #[serde(default)]
    pub append_compared: bool,
    /// Where the received part of a file is kept if the run is cut off: a name beside the file, or an absolute path.
    pub partial_dir: Option<Vec<u8>>,
    /// Where files are written before they are renamed: a path from the destination's root, or an absolute one. None:
    /// in their own directories.
    #[serde(default)]
    pub temp_dir: Option<Vec<u8>>,
    /// New files are renamed into place only after all of them are written.
    #[serde(default)]
    pub delays_names: bool,
    /// The received part of a file is kept if a run is cut off, and the next run continues it.
    pub resume: bool,
    /// Replaced and deleted entries are kept.
    pub backup: Option<BackupLocation>,
    /// Replaced and deleted entries are moved to a dated directory in the destination's trash.
    pub trash: bool,
    /// An entry is replaced or deleted only if it is as it was listed; otherwise it stays and is reported.
    pub unchanged: bool,
    /// Each file is synced before it is renamed, and each directory before the run ends.
    pub fsync: bool,
    /// Written files are read again and compared by BLAKE3.
    pub verify: bool,
}

/// Where the old version of a file is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupLocation {
    /// The directory, a path from the destination's root; None: the directory of the new file.
    pub dir: Option<Vec<u8>>,
    /// The suffix of its name.
    pub suffix: Vec<u8>,
}

impl BackupLocation {
    /// Whether a path of the destination is the backup directory, or below it.
    #[must_use]
    pub fn contains_path(&self, path: &[u8]) -> bool {
        self.dir.as_deref().is_some_and(|dir| is_within_dir(path, dir))
    }
}

impl WriteOptions {
    /// Whether a path of the destination is the directory for temporary files, or below it.
    #[must_use]
    pub fn is_staging_path(&self, path: &[u8]) -> bool {
        let dirs = [&self.temp_dir, &self.partial_dir];
        dirs.into_iter().flatten().any(|dir| is_within_dir(path, dir))
    }
}

/// Whether a path from the destination's root equals the given directory, or is below it.
fn is_within_dir(path: &[u8], dir: &[u8]) -> bool {
    fn split_names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
    }
    let mut path = split_names(path);
    // An absolute directory is not below the destination's root, or cannot be compared with a path from
    // there.
    !dir.starts_with(b"/")
        && split_names(dir).all(|name| path.next() == Some(name))
        && split_names(dir).next().is_some()
}

/// Whether the old file's blocks are used as a basis for the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DeltaMode {
    /// Where it is faster.
    #[default]
    Auto,
    /// Wherever an old file exists: writes the fewest bytes.
    Always,
    /// Never: files are sent whole.
    Never,
}

/// How attributes are changed in transit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttributeRewrites {
    /// Changes of modes, applied in this order.
    pub modes: Vec<ModeChange>,
    /// All entries get this owner.
    pub owner: Option<u32>,
    /// All entries get this group.
    pub group: Option<u32>,
    /// Maps the source's owners to others; the first match counts.
    #[serde(default)]
    pub users: Vec<OwnerRule>,
    /// Maps groups in the same way.
    #[serde(default)]
    pub groups: Vec<OwnerRule>,
}

/// Maps owners to one of the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRule {
    /// The owners at the source.
    pub from: OwnerPattern,
    /// A name or a number at the destination.
    pub to: String,
}

/// The owners to which a rule applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerPattern {
    /// An inclusive range of numbers.
    Numbers(u32, u32),
    /// Names that match a pattern with `*`, `?` and `[`; `*` alone also matches owners without a name.
    Name(String),
    /// Numbers that have no name.
    Nameless,
}

/// One clause of a mode change, as in `chmod`: `Dgo+rX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// The entries to which it applies.
    pub of: ModeSubjects,
    /// The bits of the classes that the clause names: `u`, `g`, `o` or all, with their set-id and sticky bits.
    pub whom: u32,
    /// The operation.
    pub operation: ModeOperation,
    /// The bits, as if for all classes.
    pub bits: u32,
    /// `X`: also the executable bit, for directories and for files that anyone may execute.
    pub execute_if_any: bool,
    /// Bits that are left out although the clause has them: those of the umask if no class is named.
    #[serde(default)]
    pub masked: u32,
    /// The class whose permissions are copied (`u`, `g` or `o`), as its bits of a mode; 0 for none.
    #[serde(default)]
    pub copies: u32,
}

/// The entries to which a mode change applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModeSubjects {
    /// Everything.
    All,
    /// Directories.
    Dirs,
    /// All but directories.
    Files,
}

/// The operation of a mode change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModeOperation {
    /// They are added.
    Add,
    /// They are removed.
    Remove,
    /// They replace the others.
    Set,
}

impl ModeChange {
    /// The mode after the change.
    #[must_use]
    pub fn apply_to_mode(&self, mode: u32, is_dir: bool) -> u32 {
        let concerns = match self.of {
            ModeSubjects::All => true,
            ModeSubjects::Dirs => is_dir,
            ModeSubjects::Files => !is_dir,
        };
        if !concerns {
            return mode;
        }
        let execute = if self.execute_if_any && (is_dir || mode & 0o111 != 0) { 0o111 } else { 0 };
        let copied = match self.copies {
            0o700 => mode >> 6 & 7,
            0o070 => mode >> 3 & 7,
            0o007 => mode & 7,
            _ => 0,
        };
        // The permissions of one class are copied to all, and `whom` selects the classes that get them.
        let bits = (self.bits | execute | (copied * 0o111)) & self.whom & !self.masked;
        match self.operation {
            ModeOperation::Add => mode | bits,
            ModeOperation::Remove => mode & !bits,
            ModeOperation::Set => mode & !self.whom | bits,
        }
    }
}

/// Limits on the use of the machine and the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EffortOptions {
    /// Number of threads; None: chosen by [`Self::thread_count`].
    pub jobs: Option<u32>,
    /// Most bytes per second.
    pub bandwidth: Option<u64>,
    /// How often a failed file is tried again; None: [`RETRIES`].
    pub retries: Option<u32>,
    /// After this many milliseconds without a byte the other side counts as gone; None: never.
    pub timeout: Option<u64>,
}

impl EffortOptions {
    /// The number of threads: the requested one, or all of the machine within a limit.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        /// More threads than this mostly wait for each other's locks in one filesystem.
        const THREADS_MAX: usize = 16;
        let machine = || std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get);
        // Two threads even on one processor: while one waits for the disk, the other has work.
        self.jobs.map_or_else(|| machine().clamp(2, THREADS_MAX), |jobs| jobs.clamp(1, 256) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_as_chmod_does() {
        let clause = |of, whom, operation, bits, execute_if_any| ModeChange {
            of,
            whom,
            operation,
            bits,
            execute_if_any,
            masked: 0,
            copies: 0,
        };
        let go_x = clause(ModeSubjects::All, 0o2077 | 0o1000, ModeOperation::Add, 0o444, true);
        assert_eq!(go_x.apply_to_mode(0o600, false), 0o644);
        assert_eq!(go_x.apply_to_mode(0o700, false), 0o755);
        assert_eq!(go_x.apply_to_mode(0o600, true), 0o655);
        let dirs = clause(ModeSubjects::Dirs, 0o7777, ModeOperation::Set, 0o755, false);
        assert_eq!(dirs.apply_to_mode(0o7700, true), 0o755);
        assert_eq!(dirs.apply_to_mode(0o700, false), 0o700);
        let less = clause(ModeSubjects::Files, 0o0070, ModeOperation::Remove, 0o222, false);
        assert_eq!(less.apply_to_mode(0o666, false), 0o646);
    }

    #[test]
    fn a_backup_directory_holds_itself_and_what_is_in_it() {
        let backup = |dir: &str| BackupLocation { dir: Some(dir.into()), suffix: Vec::new() };
        assert!(backup("old/").contains_path(b"old") && backup("./old").contains_path(b"old/d/f"));
        assert!(backup("a/old").contains_path(b"a/old/f") && !backup("a/old").contains_path(b"a"));
        assert!(!backup("old").contains_path(b"older") && !backup("old").contains_path(b"d/old"));
        assert!(!backup("/old").contains_path(b"old") && !backup(".").contains_path(b"f"));
        assert!(!BackupLocation { dir: None, suffix: Vec::new() }.contains_path(b"f"));
    }

    #[test]
    fn options_survive_the_wire() {
        let options = SyncOptions {
            delete: DeleteOptions { max: Some(DeleteLimit::Percent(3)), ..DeleteOptions::default() },
            ..SyncOptions::default()
        };
        let text = serde_json::to_string(&options).unwrap_or_default();
        assert_eq!(serde_json::from_str::<SyncOptions>(&text).ok(), Some(options));
    }
}
