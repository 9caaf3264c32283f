//! The value of a worktree's ref: its current snapshot, and the right to change it.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use vellum_crypto::fill_random;
use vellum_map::MapRoot;
use vellum_types::{BlobId, DecodeError, FieldReader, FieldWriter, SnapshotId, UnixTime};

use crate::lease::{Lease, LeaseToken};
use crate::operations::OperationLink;
use crate::record::SnapshotStatistics;
use crate::session::current_time;

/// Most states that are kept for those who lost the lease of a worktree: each is a machine that did not come back.
const LEFT_MAX: usize = 64;

/// Most trees that are kept for what a holder of the lease reads besides the one that it stands on: the object must not
/// grow without limit. Of what else it reads, a collection may take what no snapshot has.
pub const READING_MAX: usize = 256;

/// First byte of a head with all fields. A head of the first version begins with whether it names a snapshot: 0 or 1.
const VERSION: u8 = 2;

/// First byte of a head with all fields and a log. Values of removed worktrees begin with 3, of chains with 4.
const VERSION_WITH_LOG: u8 = 5;

/// Longest address of a log's engine, and longest name of credentials, bytes.
const ADDRESS_MAX: usize = 4096;

/// Bytes of a mark.
const MARK_LEN: usize = 16;

/// The value of a worktree's ref: its current snapshot, and the right to change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorktreeHead {
    /// The snapshot that the worktree stands on; none before the first.
    pub head: Option<SnapshotId>,
    /// When the worktree was made.
    pub created: UnixTime,
    /// Host that it is on; of a mounted one, the last that had its lease. Empty if it was pushed.
    pub host: String,
    /// Directory that it is in; of a mounted one, that of the live state. Empty if it was pushed.
    pub place: String,
    /// What a mounted worktree has published since its head; none if nothing, or if it is checked out.
    pub live: Option<UnsnapshottedTree>,
    /// Who may change it, or was the last who did; none if it is checked out, or was never mounted.
    pub lease: Option<Lease>,
    /// Trees on which those may stand who lost the lease to another and have unpublished changes.
    pub left: Vec<(LeaseToken, MapRoot)>,
    /// Trees that the holder of the lease reads besides: it stood on them, and views, open files or its own crash may
    /// need them still.
    pub reading: Vec<MapRoot>,
    /// How much it may hold.
    pub quota: WorktreeQuota,
    /// What the directory of a checked-out worktree has to have to change it; none if its store lies in that directory,
    /// or if it is to be mounted.
    pub mark: Option<WorktreeMark>,
    /// What is kept of what a mounted worktree has deleted.
    pub trash: WorktreeTrash,
    /// The last operation of the worktree; none before the first. Whoever changes the ref sets it.
    pub operation: Option<OperationLink>,
    /// The log from which another machine continues a mounted worktree; none if what is not published is on one machine
    /// only.
    pub log: Option<WorktreeLog>,
}

/// The log of a worktree outside the machine that has it mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorktreeLog {
    /// The address of its engine, without a password.
    pub url: String,
    /// The name of the credentials for it, as each machine keeps them; none for those of the environment.
    pub credentials: Option<String>,
    /// Its name in the engine.
    pub key: [u8; 16],
    /// Which log of that name it is.
    pub incarnation: [u8; 16],
    /// A position that it had reached, and was durable at, when the ref was changed last.
    pub floor: u64,
}

/// A random number that a worktree and its directory have in common. Written in 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorktreeMark(pub [u8; MARK_LEN]);

impl WorktreeMark {
    /// A new one.
    #[must_use]
    pub fn generate() -> Self {
        let mut mark = [0; MARK_LEN];
        fill_random(&mut mark);
        Self(mark)
    }
}

impl fmt::Display for WorktreeMark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for WorktreeMark {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        Ok(Self(u128::from_str_radix(text, 16)?.to_be_bytes()))
    }
}

/// A tree that is in no snapshot yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsnapshottedTree {
    /// Its top node.
    pub root: MapRoot,
    /// What it holds; `changed` and `stored` count since the last snapshot.
    pub counted: SnapshotStatistics,
}

/// The most that a worktree may hold; None: as much as there is room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorktreeQuota {
    /// Bytes of content of all files.
    pub bytes: Option<u64>,
    /// Inodes: files, directories with the root, and others.
    pub inodes: Option<u64>,
}

/// The trash of a mounted worktree: whether there is one, and what was published of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorktreeTrash {
    /// Days that a deleted entry is kept; 0: nothing is.
    pub days: u32,
    /// What is in it, as a tree that is in no snapshot; none if nothing.
    pub tree: Option<UnsnapshottedTree>,
}

impl WorktreeHead {
    /// A new worktree, which stands on no snapshot yet.
    #[must_use]
    pub fn new(host: String, place: String) -> Self {
        Self {
            head: None,
            created: current_time(),
            host,
            place,
            live: None,
            lease: None,
            left: Vec::new(),
            reading: Vec::new(),
            quota: WorktreeQuota::default(),
            mark: None,
            trash: WorktreeTrash::default(),
            operation: None,
            log: None,
        }
    }

    /// What operations record of a head: what stays the same while its holder works, renews its lease and publishes.
    #[must_use]
    pub(crate) fn recorded_part(&self) -> Self {
        Self {
            live: None,
            lease: None,
            left: Vec::new(),
            reading: Vec::new(),
            trash: WorktreeTrash { tree: None, ..self.trash },
            operation: None,
            log: None,
            ..self.clone()
        }
    }

    /// Whether a directory has the worktree. One that was pushed has none in the store that it was pushed to.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        !self.place.is_empty()
    }

    /// The value of the ref.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        // Only a worktree with a log needs a Vellum that knows of logs.
        writer.write_u8(if self.log.is_some() { VERSION_WITH_LOG } else { VERSION });
        match &self.head {
            None => writer.write_u8(0),
            Some(id) => writer.write_u8(1).write_raw(id.as_bytes()),
        };
        self.created.encode(&mut writer);
        writer.write_bytes(self.host.as_bytes()).write_bytes(self.place.as_bytes());
        encode_tree(self.live.as_ref(), &mut writer);
        match &self.lease {
            None => drop(writer.write_u8(0)),
            Some(lease) => lease.encode(writer.write_u8(1)),
        }
        writer.write_varint(self.left.len() as u64);
        for (token, root) in &self.left {
            writer.write_raw(&token.0).write_raw(root.0.as_bytes());
        }
        writer.write_varint(self.reading.len() as u64);
        for root in &self.reading {
            writer.write_raw(root.0.as_bytes());
        }
        for limit in [self.quota.bytes, self.quota.inodes] {
            match limit {
                None => writer.write_u8(0),
                Some(most) => writer.write_u8(1).write_varint(most),
            };
        }
        match &self.mark {
            None => writer.write_u8(0),
            Some(mark) => writer.write_u8(1).write_raw(&mark.0),
        };
        writer.write_varint(u64::from(self.trash.days));
        encode_tree(self.trash.tree.as_ref(), &mut writer);
        match &self.operation {
            None => drop(writer.write_u8(0)),
            Some(link) => link.encode(writer.write_u8(1)),
        }
        if let Some(log) = &self.log {
            log.encode(&mut writer);
        }
        writer.into_vec()
    }

    /// Reads the value of the ref.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let has_log = bytes.first() == Some(&VERSION_WITH_LOG);
        // The first version has no byte for it. Its first byte is the flag of the snapshot, and is read as such below.
        let is_first_version = !has_log && bytes.first() != Some(&VERSION);
        let mut rest = FieldReader::new(bytes.get(usize::from(!is_first_version)..).unwrap_or_default());
        let reader = &mut rest;
        let head = if decode_flag(reader, "head")? { Some(SnapshotId(reader.read_array()?)) } else { None };
        let created = UnixTime::decode(reader)?;
        // Without a limit of its own: the object has one.
        let host = reader.read_string(usize::MAX)?.to_owned();
        let place = reader.read_string(usize::MAX)?.to_owned();
        let live = decode_tree(reader, "live root")?;
        let lease = if decode_flag(reader, "lease")? { Some(Lease::decode(reader)?) } else { None };
        let left = (0..reader.read_count(LEFT_MAX)?)
            .map(|_| Ok((LeaseToken(reader.read_array()?), decode_root(reader)?)))
            .collect::<Result<_, DecodeError>>()?;
        let reading = (0..reader.read_count(READING_MAX)?)
            .map(|_| decode_root(reader))
            .collect::<Result<_, DecodeError>>()?;
        let mut limit =
            || if decode_flag(reader, "quota")? { reader.read_varint().map(Some) } else { Ok(None) };
        let quota = WorktreeQuota { bytes: limit()?, inodes: limit()? };
        let (mark, trash) = match is_first_version {
            true => decode_first_fields(reader)?,
            false => (decode_mark(reader)?, decode_trash(reader)?),
        };
        // The first version had no operations, and ends here.
        let operation = match is_first_version || !decode_flag(reader, "operation")? {
            true => None,
            false => Some(OperationLink::decode(reader)?),
        };
        let log = if has_log { Some(WorktreeLog::decode(reader)?) } else { None };
        rest.expect_end()?;
        Ok(Self {
            head,
            created,
            host,
            place,
            live,
            lease,
            left,
            reading,
            quota,
            mark,
            trash,
            operation,
            log,
        })
    }

    /// Keeps a tree for a holder who is about to lose the lease, and may have changes over it.
    pub(crate) fn keep_root_for(&mut self, token: LeaseToken, root: MapRoot) {
        self.left.insert(0, (token, root));
        // The newest are first: with too many, the machine that has been away longest loses its tree.
        self.left.truncate(LEFT_MAX);
    }
}

impl WorktreeLog {
    fn encode(&self, writer: &mut FieldWriter) {
        writer.write_bytes(self.url.as_bytes());
        match &self.credentials {
            None => writer.write_u8(0),
            Some(name) => writer.write_u8(1).write_bytes(name.as_bytes()),
        };
        writer.write_raw(&self.key).write_raw(&self.incarnation).write_varint(self.floor);
    }

    fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let url = reader.read_string(ADDRESS_MAX)?.to_owned();
        let credentials = match decode_flag(reader, "credentials")? {
            false => None,
            true => Some(reader.read_string(ADDRESS_MAX)?.to_owned()),
        };
        let key = reader.read_array()?;
        Ok(Self { url, credentials, key, incarnation: reader.read_array()?, floor: reader.read_varint()? })
    }
}

fn decode_mark(reader: &mut FieldReader<'_>) -> Result<Option<WorktreeMark>, DecodeError> {
    Ok(if decode_flag(reader, "mark")? { Some(WorktreeMark(reader.read_array()?)) } else { None })
}

fn decode_trash(reader: &mut FieldReader<'_>) -> Result<WorktreeTrash, DecodeError> {
    let days = reader.read_varint_u32()?;
    Ok(WorktreeTrash { days, tree: decode_tree(reader, "trash")? })
}

/// The mark and the trash of a head of the first version, in which each of them may be left out.
fn decode_first_fields(
    reader: &mut FieldReader<'_>,
) -> Result<(Option<WorktreeMark>, WorktreeTrash), DecodeError> {
    match reader.remaining() {
        0 => Ok((None, WorktreeTrash::default())),
        // With trash these fields never have this length.
        MARK_LEN => Ok((Some(WorktreeMark(reader.read_array()?)), WorktreeTrash::default())),
        _ => {
            let mark = decode_mark(reader)?;
            let trash = decode_trash(reader)?;
            if trash == WorktreeTrash::default() {
                // Two forms of one head could not be told from a change.
                return Err(DecodeError::Invalid("trash"));
            }
            Ok((mark, trash))
        }
    }
}

fn encode_tree(tree: Option<&UnsnapshottedTree>, writer: &mut FieldWriter) {
    match tree {
        None => drop(writer.write_u8(0)),
        Some(tree) => tree.counted.encode(writer.write_u8(1).write_raw(tree.root.0.as_bytes())),
    }
}

fn decode_tree(
    reader: &mut FieldReader<'_>,
    what: &'static str,
) -> Result<Option<UnsnapshottedTree>, DecodeError> {
    if !decode_flag(reader, what)? {
        return Ok(None);
    }
    Ok(Some(UnsnapshottedTree { root: decode_root(reader)?, counted: SnapshotStatistics::decode(reader)? }))
}

fn decode_flag(reader: &mut FieldReader<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match reader.read_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid(what)),
    }
}

fn decode_root(reader: &mut FieldReader<'_>) -> Result<MapRoot, DecodeError> {
    Ok(MapRoot(BlobId(reader.read_array()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_made_at_an_impossible_moment_is_refused() {
        let head = |nanos| WorktreeHead {
            created: UnixTime { secs: -1, nanos },
            ..WorktreeHead::new("box".into(), "/home/ann/work".into())
        };
        let last = head(999_999_999);
        assert_eq!(WorktreeHead::decode(&last.encode()), Ok(last));
        for nanos in [1_000_000_000, u32::MAX] {
            assert!(matches!(WorktreeHead::decode(&head(nanos).encode()), Err(DecodeError::Invalid(_))));
        }
    }
}
