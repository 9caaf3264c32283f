//! Gathers entries into the bytes of one node after the other; the encoder of the format in `node.rs`.

use vellum_types::BlobId;
use vellum_types::codec::FieldWriter;

use crate::node::{HEADER_LEN, MAGIC, VERSION};
use crate::shape::{MapShape, NodeFill};

/// The node of one level that is being filled.
#[derive(Debug)]
pub(crate) struct NodePacker {
    shape: MapShape,
    level: u8,
    bytes: Vec<u8>,
    fill: NodeFill,
    total: u64,
    /// Where in `bytes` the key and the value of the last entry begin.
    last: LastEntryHash,
}

#[derive(Debug, Default, Clone, Copy)]
struct LastEntryHash {
    key: usize,
    value: usize,
}

impl NodePacker {
    pub(crate) fn new(shape: MapShape, level: u8) -> Self {
        let mut packer = Self {
            shape,
            level,
            bytes: Vec::new(),
            fill: NodeFill::default(),
            total: 0,
            last: LastEntryHash::default(),
        };
        packer.start_next_node();
        packer
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fill.count == 0
    }

    pub(crate) fn entry_count(&self) -> u32 {
        self.fill.count
    }

    /// Keys in leaves under the node.
    pub(crate) fn total_keys(&self) -> u64 {
        self.total
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        self.bytes.get(self.last.key..self.last.value).unwrap_or_default()
    }

    pub(crate) fn last_value(&self) -> &[u8] {
        self.bytes.get(self.last.value..).unwrap_or_default()
    }

    /// Appends an entry under which there are `keys` keys; true if the node ends with it.
    pub(crate) fn push_entry(&mut self, key: &[u8], value: &[u8], keys: u64) -> bool {
        // The bytes are the encoded node from the beginning: finishing it only fills in the count, and copies
        // nothing.
        let start = self.bytes.len();
        push_varint(&mut self.bytes, key.len());
        push_varint(&mut self.bytes, value.len());
        self.last.key = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.last.value = self.bytes.len();
        self.bytes.extend_from_slice(value);
        // Entries are bounded by the limits on keys and values, and nodes end at their maximum: both fit.
        let entry = (self.bytes.len() - start) as u32;
        self.fill = NodeFill { count: self.fill.count + 1, size: self.fill.size + entry };
        self.total += keys;
        self.shape.should_end_node(self.level, key, entry, self.fill)
    }

    /// The finished bytes of the node.
    pub(crate) fn finish_node(&mut self) -> &[u8] {
        // The count is known only now. It is written into the place that the header has for it.
        if let Some(count) = self.bytes.get_mut(HEADER_LEN - 4..HEADER_LEN) {
            count.copy_from_slice(&self.fill.count.to_le_bytes());
        }
        &self.bytes
    }

    /// Starts the next node.
    pub(crate) fn start_next_node(&mut self) {
        // This keeps the capacity, since the nodes of a level are of similar lengths.
        self.bytes.clear();
        self.bytes.extend_from_slice(&MAGIC);
        self.bytes.extend_from_slice(&[VERSION, self.level, 0, 0, 0, 0]);
        self.fill = NodeFill::default();
        self.total = 0;
        self.last = LastEntryHash { key: HEADER_LEN, value: HEADER_LEN };
    }
}

/// The value of an inner node's entry.
pub(crate) fn encode_child(id: &BlobId, count: u64) -> Vec<u8> {
    let mut writer = FieldWriter::from_vec(Vec::with_capacity(BlobId::LEN + 10));
    writer.write_raw(id.as_bytes()).write_varint(count);
    writer.into_vec()
}

fn push_varint(bytes: &mut Vec<u8>, len: usize) {
    // The encoding of `FieldWriter::write_varint`, which would have to own the bytes of the node.
    let mut rest = len;
    while rest >= 0x80 {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}
