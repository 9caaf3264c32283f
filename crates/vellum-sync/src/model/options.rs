//! What a run is asked to do: plain data, the same for both sides, so that it goes over the wire as it is.
//!
//! Invariant: an option says what is wanted, never how a command line says it. Deliberately absent: rules on names
//! (see `rules`).

mod basis;

pub use basis::{BASIS_DIRS_MAX, Basis, BasisUsage, resolve_missing_path};

use serde::{Deserialize, Serialize};

use crate::ends::SyncSide;
use crate::ends::stored_stat::STORED_STAT;

/// ACLs are attributes whose names begin so.
pub(crate) const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// Attributes of the filesystem's own, which nobody copies.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// How often a refused or cut-off file is tried again unless told otherwise: once more, then it is a problem to show.
pub const RETRIES: u32 = 1;

/// Everything that a run is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncOptions {
    /// What is copied.
    pub preserve: PreserveOptions,
    /// When two files count as equal, and which are left alone.
    pub compare: CompareOptions,
    /// What is deleted.
    pub delete: DeleteOptions,
    /// How files are written.
    pub writing: WriteOptions,
    /// Trees that have what the destination lacks.
    #[serde(default)]
    pub basis: Option<Basis>,
    /// What becomes of attributes on their way.
    pub changes: AttributeRewrites,
    /// How much of the machine and the line is used.
    pub effort: EffortOptions,
    /// Files that were renamed at the source are renamed at the destination instead of being sent.
    pub detect_renames: bool,
    /// Directories on other filesystems are made, and not entered.
    pub one_filesystem: bool,
    /// What was listed and is not there is no problem.
    #[serde(default)]
    pub ignore_missing: bool,
    /// Listings say when each file's attributes last changed, and when they were begun.
    #[serde(default)]
    pub stamps: bool,
    /// What the destination has in the end is taken away at the source; needs `stamps`, which tell files from each other
    /// then.
    #[serde(default)]
    pub moves: bool,
}

/// What is copied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PreserveOptions {
    /// What is below directories; without it a directory is left out.
    pub recursive: bool,
    /// Modification times.
    pub times: bool,
    /// But not those of directories.
    pub omit_dir_times: bool,
    /// But not those of symlinks.
    pub omit_link_times: bool,
    /// Mode bits.
    pub modes: bool,
    /// Whether a file can be executed, where modes are not copied.
    pub executability: bool,
    /// Owners, where the caller may.
    pub owners: bool,
    /// Groups, where the caller may.
    pub groups: bool,
    /// Who receives, if it is not root; known when the destination was listed.
    #[serde(default)]
    pub receiver: Option<UnprivilegedReceiver>,
    /// Owners and groups go by number, even if the other side has the same names under other numbers.
    pub numeric_ids: bool,
    /// Directories, though they are not entered, where not all that is below them is copied.
    pub dirs: bool,
    /// But not directories in which there would be nothing.
    pub prune_empty: bool,
    /// Directories on the way to what was named get nothing of what they are at the source.
    #[serde(default)]
    pub bare_way: bool,
    /// What becomes of symlinks.
    pub symlinks: SymlinkHandling,
    /// Which symlinks are not copied, but what they lead to.
    pub follow: FollowSymlinks,
    /// A symlink to a directory at the destination counts as that directory where the source has a directory.
    #[serde(default)]
    pub keep_dir_links: bool,
    /// With `keep_dir_links`: the paths of those symlinks, known when both sides were listed.
    #[serde(default)]
    pub dir_links: Vec<Vec<u8>>,
    /// Symlinks that lead out of what is copied are left out.
    pub safe_links: bool,
    /// Device nodes.
    pub devices: bool,
    /// Fifos and sockets.
    pub specials: bool,
    /// That names are names of one file.
    pub hard_links: bool,
    /// Extended attributes but ACLs.
    pub xattrs: bool,
    /// ACLs.
    pub acls: bool,
    /// Which sides keep owners, modes and special files in an attribute.
    #[serde(default)]
    pub stored_stat: StoredStatSides,
    /// Access times.
    pub atimes: bool,
    /// Runs of zeros become holes. Holes stay holes without it.
    pub sparse: bool,
}

/// Which sides keep owners, modes and special files in an attribute (see `stored_stat`).
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

    /// Whether an extended attribute of the destination is the source's affair.
    #[must_use]
    pub fn sets_xattr(&self, name: &[u8]) -> bool {
        match name {
            _ if name.starts_with(ACL_PREFIX) => self.acls,
            STORED_STAT if self.stored_stat.destination => true,
            _ => self.xattrs && !name.starts_with(SYSTEM_PREFIX),
        }
    }
}

/// Somebody who is not root: sets only groups that they are in, and only of what is theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnprivilegedReceiver {
    /// Who.
    pub user: u32,
    /// Their groups, sorted.
    pub groups: Vec<u32>,
}

/// What becomes of symlinks at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SymlinkHandling {
    /// They are left out.
    #[default]
    Skip,
    /// They are copied as symlinks.
    Keep,
}

/// Which symlinks at the source are followed. Those at the destination are with
/// [`keep_dir_links`](PreserveOptions::keep_dir_links) only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FollowSymlinks {
    /// None.
    #[default]
    Never,
    /// Those that lead to directories.
    Dirs,
    /// Those that lead out of what is copied.
    Outside,
    /// All.
    Always,
}

/// When two files count as equal, and which are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CompareOptions {
    /// What is looked at.
    pub by: CompareMethod,
    /// Times that differ by no more count as equal, nanoseconds.
    pub modify_window: u64,
    /// Files that are newer at the destination are left alone.
    pub update: bool,
    /// Nothing is made that is not there.
    pub existing: bool,
    /// Nothing is changed that is there.
    pub ignore_existing: bool,
}

impl CompareOptions {
    /// Takes times for equal that a filesystem cannot tell apart, too.
    pub fn widen_tolerance(&mut self, window: u64) {
        self.modify_window = self.modify_window.max(window);
    }
}

/// What is looked at when two files are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CompareMethod {
    /// Size and time.
    #[default]
    SizeAndTime,
    /// Size alone.
    Size,
    /// Nothing: everything is sent.
    Nothing,
    /// Content, where sizes are equal.
    Content,
}

/// What is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeleteOptions {
    /// Whether, and when.
    pub when: DeletePhase,
    /// At most so much; more, and nothing is deleted.
    pub max: Option<DeleteLimit>,
    /// More than half of the destination, or all of it for an empty source, may go.
    pub force: bool,
    /// What the rules leave out is deleted too.
    pub excluded: bool,
    /// What was named or listed, and is not at the source, goes at the destination.
    #[serde(default)]
    pub missing: bool,
    /// A directory that is in the way of something else may go with all that is in it, though nothing else is deleted.
    pub obstacles: bool,
}

/// When what the source does not have is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DeletePhase {
    /// Never.
    #[default]
    Never,
    /// Before anything is written: needs the least room.
    Before,
    /// After everything is written: nothing is gone before its successor is there.
    After,
}

/// A limit on what is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeleteLimit {
    /// Entries.
    Entries(u64),
    /// A share of the destination's entries, percent.
    Percent(u8),
}

/// How files are written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WriteOptions {
    /// Whether the old file's blocks are used.
    pub delta: DeltaMode,
    /// Over the old file, instead of beside it: a reader, or a run that was killed, can see a mixture.
    pub in_place: bool,
    /// What is longer at the source gets its end appended, in place; its beginning is not looked at.
    pub append: bool,
    /// With `append`: its beginning is compared, and what differs is written, too.
    #[serde(default)]
    pub append_compared: bool,
    /// Where what arrived of a file is kept when the run is cut off; a name beside the file, or an absolute path.
    pub partial_dir: Option<Vec<u8>>,
    /// Where files are written before they get their names: a path from the destination's root, or an absolute one. None:
    /// beside their places.
    #[serde(default)]
    pub temp_dir: Option<Vec<u8>>,
    /// All new content gets its names when everything is written.
    #[serde(default)]
    pub delays_names: bool,
    /// What arrived of a file when a run was cut off is kept, and taken up by the next one.
    pub resume: bool,
    /// What is replaced or deleted is kept.
    pub backup: Option<BackupLocation>,
    /// What is replaced or deleted goes to a dated directory in the destination's trash.
    pub trash: bool,
    /// What is replaced or deleted must be as it was listed, else it stays and is a problem to show.
    pub unchanged: bool,
    /// Each file is durable before it has its name, each directory before the run ends.
    pub fsync: bool,
    /// What was written is read again and compared by BLAKE3.
    pub verify: bool,
}

/// Where the old version of a file is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupLocation {
    /// The directory, a path from the destination's root; none: beside the new one.
    pub dir: Option<Vec<u8>>,
    /// What is appended to its name.
    pub suffix: Vec<u8>,
}

impl BackupLocation {
    /// Whether a path of the destination is the directory that old versions go to, or in it.
    #[must_use]
    pub fn contains_path(&self, path: &[u8]) -> bool {
        self.dir.as_deref().is_some_and(|dir| is_within_dir(path, dir))
    }
}

impl WriteOptions {
    /// Whether a path of the destination is the directory that files are written in, or in it.
    #[must_use]
    pub fn is_staging_path(&self, path: &[u8]) -> bool {
        let dirs = [&self.temp_dir, &self.partial_dir];
        dirs.into_iter().flatten().any(|dir| is_within_dir(path, dir))
    }
}

/// Whether a path from the destination's root is a directory, named by such a path, or in it.
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

/// Whether the old file's blocks are used for the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DeltaMode {
    /// Where it is faster.
    #[default]
    Auto,
    /// Wherever there is an old file: writes the least.
    Always,
    /// Files are sent whole.
    Never,
}

/// What becomes of attributes on their way.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttributeRewrites {
    /// Changes of modes, one after the other.
    pub modes: Vec<ModeChange>,
    /// Everything belongs to this user.
    pub owner: Option<u32>,
    /// Everything belongs to this group.
    pub group: Option<u32>,
    /// To whom belongs what belongs to others at the source; the first that matches counts.
    #[serde(default)]
    pub users: Vec<OwnerRule>,
    /// Map groups, in the same way.
    #[serde(default)]
    pub groups: Vec<OwnerRule>,
}

/// Whom owners become at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRule {
    /// Owners at the source.
    pub from: OwnerPattern,
    /// A name or a number at the destination.
    pub to: String,
}

/// Which owners a rule concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerPattern {
    /// Numbers, the first and the last.
    Numbers(u32, u32),
    /// Names that match, with `*`, `?` and `[`; `*` alone is everybody.
    Name(String),
    /// Numbers without a name.
    Nameless,
}

/// One clause of a change of modes, as in `chmod`: `Dgo+rX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// What it applies to.
    pub of: ModeSubjects,
    /// The bits that the clause speaks of (of whom): `u`, `g`, `o` or all, with their set-id and sticky bits.
    pub whom: u32,
    /// What is done.
    pub operation: ModeOperation,
    /// The bits, for all whom it may concern.
    pub bits: u32,
    /// `X`: execution too, for directories and what anybody may execute.
    pub execute_if_any: bool,
    /// Bits that stay out, though the clause has them: those of the umask where nobody is named.
    #[serde(default)]
    pub masked: u32,
    /// Whose permissions are taken (`u`, `g` or `o`): their bits of a mode; 0 for nobody's.
    #[serde(default)]
    pub copies: u32,
}

/// What a change of modes applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModeSubjects {
    /// Everything.
    All,
    /// Directories.
    Dirs,
    /// All but directories.
    Files,
}

/// What a change of modes does with its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModeOperation {
    /// They are added.
    Add,
    /// They are taken away.
    Remove,
    /// They are all there is.
    Set,
}

impl ModeChange {
    /// The mode that comes of it.
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

/// How much of the machine and the line is used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EffortOptions {
    /// Threads; none: as many as do good.
    pub jobs: Option<u32>,
    /// Bytes a second at most.
    pub bandwidth: Option<u64>,
    /// How often a file is tried again; none: [`RETRIES`].
    pub retries: Option<u32>,
    /// Without a byte for so long the other side counts as gone, milliseconds; none: never.
    pub timeout: Option<u64>,
}

impl EffortOptions {
    /// How many threads to use: all that the machine has, within bounds, unless told otherwise.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        /// More threads than this have nothing to do but to wait for each other in one filesystem.
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
