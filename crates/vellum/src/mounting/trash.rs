//! The trash over the control channel: what is asked of it, and what is answered.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vellum_fs::history::partial::ReplacedName;
use vellum_fs::trash::{TrashEntry, TrashRecord, TrashRestore, select_number, select_path};
use vellum_fs::{FsError, LiveFilesystem};
use vellum_types::{FileKind, Ino, UnixTime};

/// Bytes of paths that an answer lists at most, and what counts as those of each entry besides: in JSON it is some five
/// times as long.
const LISTED_MAX: usize = 8 << 20;
const ENTRY_OVERHEAD: usize = 32;

/// How long the trash keeps what is removed, and what is in it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct TrashFigures {
    /// Days; 0: it keeps nothing.
    pub days: u32,
    /// Entries.
    pub entries: u64,
    /// Bytes of content of files.
    pub bytes: u64,
}

/// What is asked of the trash.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrashRequest {
    /// The entries of these paths, and of all below them; of all if there are none.
    List(Vec<Vec<u8>>),
    /// Entries back into the worktree.
    Restore(TrashSelection),
    /// Nothing in it.
    Empty,
    /// To keep entries for so many days; 0: to keep nothing.
    SetDays(u32),
}

/// What the trash answers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TrashReply {
    /// The entries that were asked for, those that were removed last, in the order in which they were removed.
    pub entries: Vec<TrashedEntry>,
    /// Entries that were removed before those, and are not listed.
    pub omitted: u64,
    /// How many were restored or deleted.
    pub changed: u64,
}

/// An entry of the trash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrashedEntry {
    /// By which it is restored.
    pub number: u64,
    /// From the root.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: u8,
    /// Bytes of content.
    pub size: u64,
    /// Who removed it.
    pub uid: u32,
    /// When, Unix seconds.
    pub removed: i64,
}

/// What is to be restored from the trash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrashSelection {
    /// Entries by number.
    pub numbers: Vec<u64>,
    /// The newest entries of these paths, and of all below them.
    pub paths: Vec<Vec<u8>>,
    /// The path that they get; None: their own.
    pub to: Option<Vec<u8>>,
}

impl TrashFigures {
    /// The figures of a worktree.
    pub fn read_from_trash(fs: &LiveFilesystem) -> Result<Self, FsError> {
        let used = fs.trash().used_amount()?;
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(Self { days: fs.trash().days(), entries: unsigned(used.inodes), bytes: unsigned(used.bytes) })
    }
}

impl TrashRequest {
    /// Carries it out. Adds the names that are new in the worktree.
    pub fn carry_out(
        &self,
        fs: &Arc<LiveFilesystem>,
        created: &mut Vec<ReplacedName>,
    ) -> Result<TrashReply, FsError> {
        let mut reply = TrashReply::default();
        match self {
            Self::List(paths) => reply = TrashReply::for_listing(fs.trash().list_entries()?, paths),
            Self::Restore(selection) => {
                // All of them are found before the first one is restored: a mistyped number restores nothing.
                let wanted = selection.find_entries(fs)?;
                // The kernel may have cached these names as absent, which the caller has it forget.
                *created = fs.restore_from_trash(&wanted)?;
                reply.changed = wanted.len() as u64;
            }
            Self::Empty => {
                // Before it is emptied, since nothing can be counted then.
                reply.changed = TrashFigures::read_from_trash(fs)?.entries;
                fs.trash().empty()?;
            }
            Self::SetDays(days) => fs.trash().set_days(*days)?,
        }
        Ok(reply)
    }
}

impl TrashReply {
    /// Those of the entries that are at or below some paths; all if there are none.
    pub fn for_listing(mut entries: Vec<TrashEntry>, paths: &[Vec<u8>]) -> Self {
        if !paths.is_empty() {
            entries.retain(|entry| paths.iter().any(|path| is_path_within(&entry.record.path, path)));
        }
        // An answer is one line of the protocol, which has a limit. The newest entries are those that somebody looks for.
        let mut room = LISTED_MAX;
        let fits = |entry: &&TrashEntry| {
            let taken = room.checked_sub(entry.record.path.len() + ENTRY_OVERHEAD);
            room = taken.unwrap_or_default();
            taken.is_some()
        };
        let omitted = entries.len() - entries.iter().rev().take_while(fits).count();
        let listed = entries.drain(omitted..).map(TrashedEntry::from_entry).collect();
        Self { entries: listed, omitted: omitted as u64, changed: 0 }
    }
}

impl TrashedEntry {
    fn from_entry(entry: TrashEntry) -> Self {
        let TrashEntry { number, record: TrashRecord { path, uid, removed }, kind, size } = entry;
        Self { number: number.0, path, kind: kind.as_byte(), size, uid, removed: removed.secs }
    }

    /// What it is.
    pub fn file_kind(&self) -> FileKind {
        // A newer process of a mount may name a kind that this program does not know.
        FileKind::from_byte(self.kind).unwrap_or(FileKind::File)
    }

    /// When it was removed.
    pub fn removal_time(&self) -> UnixTime {
        UnixTime { secs: self.removed, nanos: 0 }
    }
}

impl TrashSelection {
    /// The entries, and the paths that they get.
    fn find_entries(&self, fs: &LiveFilesystem) -> Result<Vec<TrashRestore>, FsError> {
        let entries = fs.trash().list_entries()?;
        let to = self.to.as_deref();
        let mut wanted = Vec::new();
        for number in &self.numbers {
            wanted.push(select_number(&entries, Ino(*number), to)?);
        }
        for path in &self.paths {
            wanted.extend(select_path(&entries, path, to)?);
        }
        // One path may lie within another.
        wanted.sort_by_key(|entry| entry.number);
        wanted.dedup();
        Ok(wanted)
    }
}

fn is_path_within(path: &[u8], above: &[u8]) -> bool {
    let rest = path.strip_prefix(above);
    above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
