//! What can go wrong with a volume, each with the object it concerns.

mod kind;

use std::path::PathBuf;

use vellum_host::OperationStopped;
use vellum_types::{DecodeError, ErrorKind, Ino, SnapshotId, UnixTime};

use crate::gc::LostRecord;

/// Result of an operation on a volume.
pub type Result<T, E = VolumeError> = std::result::Result<T, E>;

/// A failure of an operation on a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The store failed or lied.
    #[error(transparent)]
    Store(#[from] vellum_store::StoreError),
    /// A blob could not be read or written.
    #[error(transparent)]
    Blob(#[from] vellum_store::BlobError),
    /// A chunk of a file could not be read.
    #[error("the content of inode {ino} cannot be read: {source}")]
    Content {
        /// The file.
        ino: Ino,
        /// What is the matter with the chunk.
        source: vellum_store::BlobError,
    },
    /// A tree could not be read.
    #[error(transparent)]
    Map(#[from] vellum_map::MapError),
    /// A key slot could not be made.
    #[error(transparent)]
    Slot(#[from] vellum_crypto::slots::KeySlotError),
    /// The store breaks promises that several writers rely on.
    #[error("{store} cannot hold a volume: {missing}")]
    UnfitStore {
        /// The store, as it describes itself.
        store: String,
        /// What it does instead of keeping its promises.
        missing: String,
    },
    /// The clocks of this machine and of the service differ.
    #[error("{}, as {store} says", vellum_store::describe_clock_lead(*.lead))]
    WrongClock {
        /// The store, as it describes itself.
        store: String,
        /// By how many seconds this machine's clock is ahead; negative if it is behind.
        lead: i64,
    },
    /// A merge is under way in the worktree.
    #[error("a merge of {name} is under way in this worktree")]
    MergeUnderWay {
        /// What the user called the other snapshot.
        name: String,
    },
    /// No merge is under way in the worktree.
    #[error("no merge is under way in this worktree")]
    NoMerge,
    /// The base that was named is in the history of one side only.
    #[error("the base {base} is not in the history of {snapshot}")]
    NotCommon {
        /// The base.
        base: SnapshotId,
        /// The snapshot that does not descend from it.
        snapshot: SnapshotId,
    },
    /// The state of a worktree is elsewhere, and this user does not know where.
    #[error("{} is a worktree whose state is elsewhere, and this user does not know where", .0.display())]
    StateElsewhere(PathBuf),
    /// In the directory of a worktree whose state is elsewhere, something looks like a state directory or leads to another.
    #[error(
        "{} is not as Vellum made it: the state of this worktree is in {}, and somebody who works here may want you to use \
         another",
        .marker.display(),
        .state.display()
    )]
    ChangedMarker {
        /// What was found.
        marker: PathBuf,
        /// The state directory of the worktree.
        state: PathBuf,
    },
    /// The state of a worktree cannot be kept there.
    #[error("the state cannot be kept in {}: {reason}", .holder.display())]
    BadHolder {
        /// Where it was to be.
        holder: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// There is no folder in which Vellum can remember something for the user.
    #[error("there is no folder for what Vellum remembers")]
    NoUserState,
    /// No state directory here or above.
    #[error("no volume here: neither {} nor a directory above it has a .vellum", .0.display())]
    NoVolume(PathBuf),
    /// There is no folder on this machine for the content of a store.
    #[error("there is no folder for caches")]
    NoCache,
    /// The cache may not hold as much as it would have to.
    #[error(
        "the cache in {} may hold {allowed} bytes of {}; it would have to hold {wanted}, of which {pinned} are pinned already",
        .folder.display(),
        name_cache_part(*part)
    )]
    CacheTooSmall {
        /// Where the cache is.
        folder: PathBuf,
        /// What has too little room in it.
        part: vellum_store::CachePart,
        /// Bytes that it would have to hold, at most.
        wanted: u64,
        /// Of these, what was pinned before.
        pinned: u64,
        /// Bytes that it may hold.
        allowed: u64,
    },
    /// The place for a new volume lies in another one.
    #[error("{} lies inside the worktree {}", .inner.display(), .outer.display())]
    Nested {
        /// Where the new one was to be.
        inner: PathBuf,
        /// The worktree that has it already.
        outer: PathBuf,
    },
    /// The directory is a worktree already.
    #[error("{} is a worktree already", .0.display())]
    AlreadyInitialised(PathBuf),
    /// A local file of the state directory cannot be used.
    #[error("cannot use {}: {source}", .path.display())]
    Local {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An object of the store is not what it should be.
    #[error("the object '{object}' is damaged: {reason}")]
    Damaged {
        /// Name of the object.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A stored structure does not decode.
    #[error("{what} cannot be read: {source}")]
    Decode {
        /// What was read.
        what: String,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A ref is older than what was seen before.
    #[error("the store was rolled back: {what} has version {found}, but {} says that version {seen} was seen here", .note.display())]
    RolledBack {
        /// Which ref.
        what: String,
        /// Counter found now.
        found: u64,
        /// Counter seen before.
        seen: u64,
        /// The local file that remembers it.
        note: PathBuf,
    },
    /// A ref that was there before is gone.
    #[error("the object '{object}' is missing: {} says that version {seen} of it was seen here", .note.display())]
    RefLost {
        /// Name of the object.
        object: String,
        /// Counter seen before.
        seen: u64,
        /// The local file that remembers it.
        note: PathBuf,
    },
    /// The list of a user's worktrees whose state is elsewhere cannot be read.
    #[error("{}, which says where the states of worktrees are, is damaged: {reason}", .list.display())]
    DamagedPlaces {
        /// The file.
        list: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The local file that remembers what was seen of the store cannot be read.
    #[error("{}, which remembers what was seen of the store, cannot be read: {reason}", .note.display())]
    SeenUnreadable {
        /// The file.
        note: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The local file with the hydration policies of a worktree cannot be read.
    #[error("{}, which has the hydration policies of a worktree, cannot be read: {reason}", .file.display())]
    BadHydrationPolicies {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The store at this place belongs to another volume, or its protection differs from what was agreed.
    #[error("the store at {place} is not the volume that this worktree belongs to: {reason}")]
    Foreign {
        /// Where.
        place: String,
        /// How it shows.
        reason: String,
    },
    /// Content of a store is read from another one, and somebody wants to read it as if it were whole.
    #[error(
        "the store at {store} does not have all content of its volume: the rest is read from {source_url}"
    )]
    DependentStore {
        /// The store.
        store: String,
        /// Where the rest is.
        source_url: String,
    },
    /// A store has all its content, and reads none from another one.
    #[error("all content of the volume is in {0} already: nothing is read from another store")]
    WholeStore(String),
    /// A store that is to be a remote holds something else.
    #[error("{place} cannot be a remote of this volume: {reason}")]
    OtherVolume {
        /// Where.
        place: String,
        /// How it shows.
        reason: String,
    },
    /// A volume was to be opened by the address of a store that has none.
    #[error("{0} holds no volume")]
    NoVolumeInStore(String),
    /// A volume was to be made among objects of another kind.
    #[error("{0} holds objects that are not those of a volume")]
    OccupiedStore(String),
    /// A remote is needed, and there is none.
    #[error("this worktree has no remote")]
    NoRemotes,
    /// Something was to be fetched from a remote that holds nothing.
    #[error("the remote '{0}' holds no volume yet")]
    EmptyRemote(String),
    /// Nobody said which remote is meant.
    #[error("none of the remotes is called 'origin': {}", .0.join(", "))]
    SeveralRemotes(Vec<String>),
    /// A store holds a volume that is encrypted, or is not, against what was asked for.
    #[error("the volume in {place} is {}", if *.encrypted { "encrypted" } else { "not encrypted" })]
    OtherSort {
        /// Where.
        place: String,
        /// Whether the one there is encrypted.
        encrypted: bool,
    },
    /// A store holds a volume that cuts content otherwise than was asked for.
    #[error("the volume in {place} cuts content into chunks of {target} on average")]
    OtherChunkSizes {
        /// Where.
        place: String,
        /// The average of that volume, as it is typed.
        target: String,
    },
    /// The key is needed and not at hand.
    #[error("the volume is encrypted, and no key is available")]
    Locked,
    /// No key slot accepts the secret.
    #[error("no key slot of this volume opens with this passphrase, key file or recovery code")]
    WrongSecret,
    /// Nothing has this name.
    #[error("no snapshot, tag or worktree is called '{0}'")]
    UnknownSnapshot(String),
    /// An expression leads to no snapshot.
    #[error("'{text}' names no snapshot: {reason}")]
    NoSnapshotThere {
        /// What was typed.
        text: String,
        /// Why not.
        reason: &'static str,
    },
    /// A tag and a worktree of one name stand for different snapshots.
    #[error("'{name}' names several snapshots: {}", .matches.join(", "))]
    SeveralNamed {
        /// What was asked for.
        name: String,
        /// What it may mean.
        matches: Vec<String>,
    },
    /// Several ids begin with this prefix.
    #[error("'{prefix}' is the beginning of several ids: {}", .matches.join(", "))]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// Some of those that match.
        matches: Vec<String>,
    },
    /// An expression cannot be understood.
    #[error("'{text}' does not name a snapshot: {reason}")]
    BadExpression {
        /// What was typed.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// The record of a snapshot is not in the store.
    #[error("the record of snapshot {0} is missing from the store")]
    MissingRecord(SnapshotId),
    /// Records without which nobody can tell what is needed.
    #[error("cannot determine what is still needed, so nothing is deleted: {}", format_lost_records(.0))]
    RecordsLost(Vec<LostRecord>),
    /// A collection was asked to go on without a record that is not lost.
    #[error("'{0}' does not begin the id of a snapshot whose record is missing or damaged")]
    NotLost(String),
    /// A session was to be ended that is not there.
    #[error("there is no session '{0}'")]
    NoSession(String),
    /// A name for a tag or worktree that cannot be used.
    #[error("'{name}' cannot be used as a name: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// Something is longer than the format can hold.
    #[error("{what} has {len} bytes, and may have {max} at most")]
    TooLong {
        /// What it is.
        what: String,
        /// Its length in bytes.
        len: usize,
        /// The most that it may have.
        max: usize,
    },
    /// A worktree of this name exists, and its directory does not.
    #[error("the worktree '{name}' exists already, and its directory {} is gone", place.display())]
    DirectoryGone {
        /// Its name.
        name: String,
        /// Where it was.
        place: PathBuf,
    },
    /// A tag or worktree of this name exists.
    #[error("the {kind} '{name}' exists already")]
    Exists {
        /// "tag" or "worktree".
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The secret is that of a slot that was removed, although its object is still there.
    #[error("the key slot of this secret was removed: it does not open the volume any more")]
    RemovedSlot,
    /// The volume's key was changed, and the slot with which this worktree was opened was removed before.
    #[error(
        "this device was revoked: the volume's key was changed on {}, and this device was not given the new one",
        crate::lease::format_time(*.time)
    )]
    Revoked {
        /// When the key was changed.
        time: UnixTime,
    },
    /// The volume's key was changed, and no secret is at hand that gives the new one.
    #[error(
        "the volume's key was changed on {} (key epoch {epoch}), and this worktree has only the one before",
        crate::lease::format_time(*.time)
    )]
    KeyChanged {
        /// Number of the new key.
        epoch: u32,
        /// When it was changed.
        time: UnixTime,
    },
    /// Slots for which nobody can wrap a new key.
    #[error("the key cannot be changed: {} would not be given the new one", .0.join(", "))]
    SlotsWithoutKey(Vec<String>),
    /// A new key would be given to nobody.
    #[error("the key cannot be changed: no key slot is left that would be given the new one")]
    NoKeySlots,
    /// A device must not be revoked without more ado.
    #[error("the device '{name}' cannot be revoked: {reason}")]
    DeviceNeeded {
        /// The device.
        name: String,
        /// What speaks against it.
        reason: &'static str,
    },
    /// More slots would never be tried.
    #[error("the volume has {0} key slots already, and no more are tried")]
    TooManySlots(usize),
    /// No tag or worktree of this name exists.
    #[error("there is no {kind} '{name}'")]
    NoSuchRef {
        /// "tag" or "worktree".
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A list would hold the paths of a tree that is so deep that they do not fit into memory.
    #[error("the directories below '{path}…' are too deep to list: they have more than {levels} levels")]
    DeepPaths {
        /// How the path begins.
        path: String,
        /// Levels of the path that was too much.
        levels: usize,
    },
    /// A path is not in the snapshot.
    #[error("'{path}' is not in {place}")]
    NoSuchPath {
        /// The path.
        path: String,
        /// Which snapshot or state.
        place: String,
    },
    /// A path is something else than needed.
    #[error("'{path}' is {found}, not {wanted}")]
    WrongKind {
        /// The path.
        path: String,
        /// What it is.
        found: &'static str,
        /// What was needed.
        wanted: &'static str,
    },
    /// The tree contradicts itself.
    #[error("the tree of the snapshot is inconsistent: {0}")]
    BadTree(String),
    /// Something is in use, so that it cannot be removed.
    #[error("{what} is still needed: {reason}")]
    InUse {
        /// What was to go.
        what: String,
        /// What needs it.
        reason: String,
    },
    /// A ref changed between reading and writing it.
    #[error("{0} was changed by someone else at the same time")]
    Raced(String),
    /// A writer lost its claim on the store while it worked.
    #[error(
        "this writer's session ran out while it worked (was the machine asleep?); what it wrote may have been collected"
    )]
    SessionLost,
    /// Another has the lease of a worktree.
    #[error(
        "the worktree '{worktree}' belongs to {lease}, until {} unless that is renewed; its live state is in {place}",
        crate::lease::format_time(.lease.expiry_time())
    )]
    Leased {
        /// Its name.
        worktree: String,
        /// The lease.
        lease: Box<crate::lease::Lease>,
        /// Directory of the holder's live state.
        place: String,
    },
    /// The lease of a worktree is lost, and with it the right to change it.
    #[error("the worktree '{worktree}' cannot be changed from here any more: {why}")]
    Fenced {
        /// Its name.
        worktree: String,
        /// How.
        why: String,
        /// Directory of the live state, with what was not published.
        place: String,
    },
    /// It is not known whether another process has the worktree by now.
    #[error("the worktree '{worktree}' cannot be changed now: {why}")]
    UnsureClaim {
        /// Its name.
        worktree: String,
        /// Why that is not known.
        why: String,
    },
    /// A live state is not the one that changed a worktree last.
    #[error("the live state in {place} is behind: the worktree '{worktree}' was taken over by {by}")]
    Behind {
        /// Its name.
        worktree: String,
        /// Who changed it.
        by: String,
        /// Directory of the live state.
        place: String,
    },
    /// A directory is a copy of a worktree's.
    #[error(
        "{} is a copy of {}, which is the worktree '{worktree}': only one of them can be",
        .copy.display(), .original.display()
    )]
    CopiedWorktree {
        /// The copy.
        copy: PathBuf,
        /// The worktree's name.
        worktree: String,
        /// Its directory.
        original: PathBuf,
    },
    /// Another directory has become the worktree that this one was.
    #[error("{} is not the worktree '{worktree}' any more: that is in {place} now", .directory.display())]
    WorktreeTakenOver {
        /// The directory.
        directory: PathBuf,
        /// The worktree's name.
        worktree: String,
        /// Where it is.
        place: String,
    },
    /// A snapshot is pinned, and would be pinned otherwise.
    #[error("snapshot {id} is pinned already, by {pin}")]
    PinnedAlready {
        /// The snapshot.
        id: SnapshotId,
        /// Who pinned it, and why.
        pin: String,
    },
    /// A snapshot was to be unpinned that is not pinned.
    #[error("snapshot {0} is not pinned")]
    NotPinned(SnapshotId),
    /// A setting that does not exist, or a value that it cannot have.
    #[error("{0}")]
    BadSetting(String),
    /// A note or property that is too long, or could deceive.
    #[error("{0}")]
    BadAnnotation(String),
    /// A pin that nobody can mean.
    #[error("this is no pin: {0}")]
    BadPin(&'static str),
    /// A retention policy without rules would keep nothing.
    #[error("no rule says which snapshots to keep")]
    NoRetentionRule,
    /// A retention policy keeps a tag that does not exist.
    #[error("there is no tag '{0}' to keep")]
    UnknownRetentionTag(String),
    /// A line was named that has no snapshot.
    #[error("no snapshot was made in a worktree called '{0}'")]
    NoSnapshotOfWorktree(String),
    /// A directory was to be adopted that is the worktree that it says it is.
    #[error("{} is no copy of another worktree", .0.display())]
    NotCopied(PathBuf),
    /// An operation is not taken back.
    #[error(transparent)]
    Revert(#[from] crate::operations::RevertError),
    /// Stopped on request.
    #[error("interrupted")]
    Interrupted,
}

impl VolumeError {
    /// Wraps what the system said about a local file.
    pub fn wrap_local_error(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { path, source }
    }

    /// There is no worktree of this name.
    pub fn no_worktree(name: impl Into<String>) -> Self {
        Self::NoSuchRef { kind: "worktree", name: name.into() }
    }

    /// Says what was being decoded.
    pub fn wrap_decode_error(what: impl Into<String>) -> impl FnOnce(DecodeError) -> Self {
        let what = what.into();
        move |source| Self::Decode { what, source }
    }
}

/// Whether something stored is lost, as opposed to a store that does not answer.
pub(crate) fn is_data_loss(error: &VolumeError) -> bool {
    // What a newer version wrote is as good as lost to this one.
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// How many lost records a message names.
const LOST_SHOWN: usize = 20;

fn format_lost_records(lost: &[LostRecord]) -> String {
    let shown = lost.iter().take(LOST_SHOWN);
    let mut text: Vec<_> = shown
        .map(|LostRecord { id, problem, named_by }| {
            format!("the record of snapshot {id} {problem} ({named_by})")
        })
        .collect();
    if let Some(more) = lost.len().checked_sub(LOST_SHOWN).filter(|more| *more > 0) {
        text.push(format!("and {more} more"));
    }
    text.join("; ")
}

impl From<OperationStopped> for VolumeError {
    fn from(_: OperationStopped) -> Self {
        Self::Interrupted
    }
}

fn name_cache_part(part: vellum_store::CachePart) -> &'static str {
    match part {
        vellum_store::CachePart::Content => "content",
        vellum_store::CachePart::Nodes => "names",
    }
}
