//! The live head: the base of a live worktree and the layers over it. Also the keys of the live store.
//!
//! Key space of the live store: `h` the live head; `l ‖ layer (u64, big endian) ‖ map key` a changed key of a layer;
//! `o ‖ inode (u64, big endian)` an orphan; `s ‖ number (u64, big endian)` a pending snapshot;
//! `b ‖ number (u64, big endian)` a retained root; `q` marks of operations, `k` sessions that have locks; `x` what the last
//! snapshot of everything left out.

use vellum_map::MapRoot;
use vellum_types::{BlobId, DecodeError, FieldReader, FieldWriter, Ino, SnapshotId, UnixTime};
use vellum_volume::SnapshotStatistics;

const VERSION: u8 = 1;
/// The version of a head with a trash.
const TRASH_VERSION: u8 = 2;

/// Maximum number of layers of one state: publishing keeps it at a few; more is damage.
const LAYERS_MAX: usize = 4096;

/// The number of a layer; never reused in one worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u64);

/// A filesystem state: a published tree and layers over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayeredState {
    /// The published tree beneath all layers.
    pub base: MapRoot,
    /// Statistics of the published tree; `changed` and `stored` count since the last snapshot of the worktree.
    pub counted: SnapshotStatistics,
    /// Newest first.
    pub layers: Vec<LayerId>,
}

/// The last snapshot of a worktree, as its successor refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AncestorSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Its position in the history.
    pub counter: u64,
    /// When it was made.
    pub time: UnixTime,
}

/// The live head of a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveHead {
    /// The current state. The first layer is the top layer, the only one that changes.
    pub state: LayeredState,
    /// The number of the next layer.
    pub next_layer: LayerId,
    /// The last snapshot of the worktree, published or not.
    pub snapshot: Option<AncestorSnapshot>,
    /// The number of the next pending snapshot.
    pub next_pending: u64,
    /// What is kept of what was removed; none if nothing is. As in the state, only the first layer changes.
    pub trash: Option<LayeredState>,
}

impl LayeredState {
    /// Returns whether these layers, and the tree below them, are the lowest ones of `other`.
    #[must_use]
    pub fn is_below(&self, other: &Self) -> bool {
        self.base == other.base && other.layers.ends_with(&self.layers)
    }

    /// Returns the state below the first layer.
    fn below_top_layer(&self) -> Self {
        Self { layers: self.layers.get(1..).unwrap_or_default().to_vec(), ..*self }
    }

    /// Adds the stored form.
    pub fn encode(&self, writer: &mut FieldWriter) {
        writer.write_raw(self.base.0.as_bytes()).write_varint(self.layers.len() as u64);
        for layer in &self.layers {
            writer.write_varint(layer.0);
        }
        self.counted.encode(writer);
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let base = MapRoot(BlobId(reader.read_array()?));
        let layers = (0..reader.read_count(LAYERS_MAX)?)
            .map(|_| reader.read_varint().map(LayerId))
            .collect::<Result<_, _>>()?;
        Ok(Self { base, layers, counted: SnapshotStatistics::decode(reader)? })
    }
}

impl LiveHead {
    /// The head of a worktree without changes.
    #[must_use]
    pub fn new(base: MapRoot, counted: SnapshotStatistics, snapshot: Option<AncestorSnapshot>) -> Self {
        let state = LayeredState { base, counted, layers: vec![LayerId(0)] };
        Self { state, next_layer: LayerId(1), snapshot, next_pending: 0, trash: None }
    }

    /// Returns the top layer.
    #[must_use]
    pub fn top_layer(&self) -> LayerId {
        // There is always one: a head without layers is refused when it is read.
        self.state.layers.first().copied().unwrap_or(LayerId(0))
    }

    /// Returns the state below the top layer, which does not change any more.
    #[must_use]
    pub fn sealed_state(&self) -> LayeredState {
        self.state.below_top_layer()
    }

    /// Returns the trash below its top layer, if there is one.
    #[must_use]
    pub fn sealed_trash(&self) -> Option<LayeredState> {
        self.trash.as_ref().map(LayeredState::below_top_layer)
    }

    /// Returns the top layer of the trash, if there is one.
    #[must_use]
    pub fn top_trash_layer(&self) -> Option<LayerId> {
        self.trash.as_ref().and_then(|trash| trash.layers.first().copied())
    }

    /// Returns the layers of the trash, the newest first.
    #[must_use]
    pub fn trash_layers(&self) -> Vec<LayerId> {
        self.trash.as_ref().map_or_else(Vec::new, |trash| trash.layers.clone())
    }

    /// Begins a trash over a published tree, or an empty one.
    pub fn begin_trash(&mut self, base: MapRoot, counted: SnapshotStatistics) {
        let layers = vec![self.allocate_layer()];
        self.trash = Some(LayeredState { base, counted, layers });
    }

    /// Seals the top layer of the trash, if there is one.
    pub fn seal_trash(&mut self) {
        let new = self.allocate_layer();
        if let Some(trash) = &mut self.trash {
            trash.layers.insert(0, new);
        }
    }

    /// Seals the top layer: later changes go to a new top layer.
    pub fn seal_top_layer(&mut self) {
        let new = self.allocate_layer();
        self.state.layers.insert(0, new);
    }

    /// Returns a new layer number.
    pub fn allocate_layer(&mut self) -> LayerId {
        let new = self.next_layer;
        self.next_layer = LayerId(new.0 + 1);
        new
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        // Without a trash the form is that of the first version, so that programs which know only that can read it.
        let version = if self.trash.is_some() { TRASH_VERSION } else { VERSION };
        writer.write_u8(version).write_varint(self.next_layer.0).write_varint(self.next_pending);
        match &self.snapshot {
            None => writer.write_u8(0),
            Some(last) => {
                writer.write_u8(1).write_raw(last.id.as_bytes()).write_varint(last.counter);
                writer.write_signed_varint(last.time.secs).write_varint(u64::from(last.time.nanos))
            }
        };
        self.state.encode(&mut writer);
        if let Some(trash) = &self.trash {
            trash.encode(&mut writer);
        }
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let version = reader.read_u8()?;
        if !matches!(version, VERSION | TRASH_VERSION) {
            return Err(DecodeError::Version(u32::from(version)));
        }
        let next_layer = LayerId(reader.read_varint()?);
        let next_pending = reader.read_varint()?;
        let snapshot = match reader.read_u8()? {
            0 => None,
            1 => {
                let id = SnapshotId(reader.read_array()?);
                let counter = reader.read_varint()?;
                let time = UnixTime { secs: reader.read_signed_varint()?, nanos: reader.read_varint_u32()? };
                Some(AncestorSnapshot { id, counter, time })
            }
            _ => return Err(DecodeError::Invalid("snapshot")),
        };
        let state = LayeredState::decode(&mut reader)?;
        let trash = if version == TRASH_VERSION { Some(LayeredState::decode(&mut reader)?) } else { None };
        reader.expect_end()?;
        for state in [&state].into_iter().chain(&trash) {
            // A layer whose number is still to be given out would get the changes of another one.
            if state.layers.is_empty() || state.layers.iter().any(|layer| *layer >= next_layer) {
                return Err(DecodeError::Invalid("layers"));
            }
        }
        Ok(Self { state, next_layer, snapshot, next_pending, trash })
    }
}

/// The key of the head.
pub const HEAD_KEY: &[u8] = b"h";

/// The key of what the last snapshot of everything left out; not there if it left out nothing.
pub const EXCLUSIONS_KEY: &[u8] = b"x";

/// The prefix of all keys of a layer.
#[must_use]
pub fn layer_prefix(layer: LayerId) -> [u8; 9] {
    encode_numbered_key(b'l', layer.0)
}

/// The end of all keys of layers.
pub const LAYERS_END: &[u8] = b"m";

/// The key of the map within a key of the live store, if that is one of a layer.
#[must_use]
pub fn parse_map_key(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(b"l")?.get(8..)
}

/// The key of an orphan.
#[must_use]
pub fn orphan_key(ino: Ino) -> [u8; 9] {
    encode_numbered_key(b'o', ino.0)
}

/// The prefix of all orphans' keys.
pub const ORPHANS: &[u8] = b"o";

/// The key of a pending snapshot; numbers grow.
#[must_use]
pub fn pending_snapshot_key(number: u64) -> [u8; 9] {
    encode_numbered_key(b's', number)
}

/// The prefix of all pending snapshots' keys.
pub const PENDING: &[u8] = b"s";

/// The prefix of all keys of marks (`operation_marks`).
pub const OPERATION_MARKS: &[u8] = b"q";

/// The prefix of all marks of a session.
#[must_use]
pub fn operation_mark_prefix(session: u64) -> [u8; 9] {
    encode_numbered_key(b'q', session)
}

/// The key of the newest layer that names chunks which clients have stored (`content::stored_chunks`); not there if a tree names
/// all of them.
pub const STORED_CHUNKS_KEY: &[u8] = b"c";

/// The prefix of all keys of sessions that have locks (`lock_holders`).
pub const LOCK_HOLDERS: &[u8] = b"k";

/// The key of a retained root.
#[must_use]
pub fn retained_root_key(number: u64) -> [u8; 9] {
    encode_numbered_key(b'b', number)
}

/// The prefix of all keys of retained roots.
pub const LOANS: &[u8] = b"b";

fn encode_numbered_key(tag: u8, number: u64) -> [u8; 9] {
    let mut key = [tag; 9];
    if let Some(digits) = key.get_mut(1..) {
        // Big endian, so that keys sort as their numbers do.
        digits.copy_from_slice(&number.to_be_bytes());
    }
    key
}
