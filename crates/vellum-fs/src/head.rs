//! The head of a live worktree: which base it stands on and which layers lie over that. And the keys under which
//! live metadata are kept.
//!
//! Key space of the live store: `h` the head; `l ‖ layer (u64, big endian) ‖ map key` a changed key of a layer;
//! `o ‖ inode (u64, big endian)` an inode that lost its last name while it was open; `s ‖ number (u64, big endian)` a
//! snapshot that is not published yet.

use vellum_map::Root;
use vellum_types::{BlobId, DecodeError, Ino, Reader, SnapshotId, Writer};

const VERSION: u8 = 1;

/// Most layers of one head: publishing and folding keep it at a few; more is damage.
const LAYERS_MAX: usize = 4096;

/// The number of a layer; never given out twice in one worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub u64);

/// Where a worktree stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The published tree beneath all layers.
    pub base: Root,
    /// Newest first. The first is the top layer, the only one that changes.
    pub layers: Vec<LayerId>,
    /// The number of the next layer.
    pub next_layer: LayerId,
    /// The last snapshot of the line, published or not.
    pub snapshot: Option<SnapshotId>,
}

impl Head {
    /// The head of a worktree without changes.
    #[must_use]
    pub fn new(base: Root, snapshot: Option<SnapshotId>) -> Self {
        Self { base, layers: vec![LayerId(0)], next_layer: LayerId(1), snapshot }
    }

    /// The layer that changes go to.
    #[must_use]
    pub fn top(&self) -> LayerId {
        self.layers.first().copied().unwrap_or(LayerId(0))
    }

    /// Seals the top layer: what follows goes to a new one.
    pub fn seal(&mut self) {
        let new = self.next_layer;
        self.next_layer = LayerId(new.0 + 1);
        self.layers.insert(0, new);
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(VERSION).raw(self.base.0.as_bytes()).varint(self.next_layer.0);
        writer.varint(self.layers.len() as u64);
        for layer in &self.layers {
            writer.varint(layer.0);
        }
        match &self.snapshot {
            None => writer.u8(0),
            Some(id) => writer.u8(1).raw(id.as_bytes()),
        };
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(u32::from(version)));
        }
        let base = Root(BlobId(reader.array()?));
        let next_layer = LayerId(reader.varint()?);
        let layers: Vec<_> =
            (0..reader.count(LAYERS_MAX)?).map(|_| reader.varint().map(LayerId)).collect::<Result<_, _>>()?;
        let snapshot = match reader.u8()? {
            0 => None,
            1 => Some(SnapshotId(reader.array()?)),
            _ => return Err(DecodeError::Invalid("snapshot")),
        };
        reader.finish()?;
        if layers.is_empty() || layers.iter().any(|layer| *layer >= next_layer) {
            return Err(DecodeError::Invalid("layers"));
        }
        Ok(Self { base, layers, next_layer, snapshot })
    }
}

/// The key of the head.
pub const HEAD_KEY: &[u8] = b"h";

/// The prefix of all keys of a layer.
#[must_use]
pub fn layer_prefix(layer: LayerId) -> [u8; 9] {
    numbered(b'l', layer.0)
}

/// The key of an orphan.
#[must_use]
pub fn orphan_key(ino: Ino) -> [u8; 9] {
    numbered(b'o', ino.0)
}

/// The prefix of all orphans' keys.
pub const ORPHANS: &[u8] = b"o";

/// The key of a snapshot that is not published yet; numbers grow.
#[must_use]
pub fn pending_key(number: u64) -> [u8; 9] {
    numbered(b's', number)
}

/// The prefix of all pending snapshots' keys.
pub const PENDING: &[u8] = b"s";

fn numbered(tag: u8, number: u64) -> [u8; 9] {
    let mut key = [tag; 9];
    if let Some(digits) = key.get_mut(1..) {
        digits.copy_from_slice(&number.to_be_bytes());
    }
    key
}
