//! Records of the log: sealed, each bound to its place and to the record before it.
//!
//! A record: length of what follows the kind, u32 ‖ kind, u8 ‖ Sealed(shared-log, ad, operations), where `ad` is the
//! log's incarnation (16) ‖ kind (1) ‖ the record's position (8) ‖ what the record before it is known by (32). A record
//! that is moved, repeated, left out or exchanged for one that stood in its place in another course of things does not
//! open. What is cut off at the end cannot be seen here: the worktree's ref has a position that the log must reach.
//!
//! A record of kind 1 begins a base and is bound to no record before it: a reader begins with one, and a server that
//! begins anew does not know what came before.

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_types::{FieldReader, FieldWriter};

use super::operation::WRITE_MAX;
use crate::error::SharedLogError;
use crate::log::{LogIncarnation, LogPosition};

/// Bytes before what is sealed.
const HEAD_LEN: usize = 5;
/// Most bytes of operations in one record: one long write, and what else fits beside it.
pub(crate) const RECORD_MAX: usize = WRITE_MAX + (64 << 10);
/// Bytes that sealing may add.
const SEAL_MAX: usize = 64;

/// What a record is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// It begins a base.
    Base,
    /// It follows another record.
    Next,
}

impl RecordKind {
    fn as_byte(self) -> u8 {
        match self {
            Self::Base => 1,
            Self::Next => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Base),
            2 => Some(Self::Next),
            _ => None,
        }
    }
}

/// What the record before a place is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RecordLink([u8; 32]);

/// The end of a log as its writer or reader knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    /// Where the next record begins.
    pub position: LogPosition,
    /// What the last record is known by.
    pub link: RecordLink,
}

/// Seals and opens the records of one log.
pub(crate) struct RecordCodec<'k> {
    pub keys: &'k VolumeKeys,
    pub incarnation: LogIncarnation,
}

/// A record that was opened.
pub(crate) struct OpenedRecord {
    pub kind: RecordKind,
    pub operations: Vec<u8>,
    /// The end of the log behind it.
    pub end: ChainEnd,
}

impl RecordCodec<'_> {
    /// Seals operations as the record at `at`. Returns its bytes, and the end of the log behind it.
    pub(crate) fn seal(&self, kind: RecordKind, at: ChainEnd, operations: &[u8]) -> (Vec<u8>, ChainEnd) {
        let mut bytes = vec![0; HEAD_LEN];
        let aad = self.associated_data(kind, at);
        self.keys.seal_record(RecordDomain::SharedLog, &aad, operations, &mut bytes);
        // No record is longer than `RECORD_MAX` and its seal.
        let len = (bytes.len() - HEAD_LEN) as u32;
        if let Some(head) = bytes.first_chunk_mut::<HEAD_LEN>() {
            let [l0, l1, l2, l3] = len.to_le_bytes();
            *head = [l0, l1, l2, l3, kind.as_byte()];
        }
        let end = self.end_behind(at, &bytes);
        (bytes, end)
    }

    /// Opens the record at the start of `bytes`, which stand at `at`.
    pub(crate) fn open(&self, at: ChainEnd, bytes: &[u8]) -> Result<OpenedRecord, String> {
        let cut = || "it ends within a record".to_owned();
        let mut reader = FieldReader::new(bytes);
        // The head is not sealed: with another length, what is opened is not what was sealed, and fails.
        let len = reader.read_u32().map_err(|_| cut())? as usize;
        if len > RECORD_MAX + SEAL_MAX {
            return Err(format!("a record has {len} bytes, more than any has"));
        }
        let kind = reader.read_u8().map_err(|_| cut())?;
        let kind =
            RecordKind::from_byte(kind).ok_or_else(|| format!("a record of kind {kind} is unknown"))?;
        let sealed = reader.read_raw(len).map_err(|_| cut())?;
        let mut operations = Vec::with_capacity(len);
        self.keys
            .open_record(RecordDomain::SharedLog, &self.associated_data(kind, at), sealed, &mut operations)
            .map_err(|error| error.to_string())?;
        let whole = bytes.get(..HEAD_LEN + len).unwrap_or_default();
        Ok(OpenedRecord { kind, operations, end: self.end_behind(at, whole) })
    }

    fn associated_data(&self, kind: RecordKind, at: ChainEnd) -> Vec<u8> {
        let link = match kind {
            // What stands before a base may have been discarded.
            RecordKind::Base => RecordLink::default(),
            RecordKind::Next => at.link,
        };
        let mut writer = FieldWriter::new();
        writer.write_raw(&self.incarnation.0).write_u8(kind.as_byte()).write_u64(at.position.0);
        writer.write_raw(&link.0);
        writer.into_vec()
    }

    fn end_behind(&self, at: ChainEnd, record: &[u8]) -> ChainEnd {
        // The tag, or the checksum, at the end depends on all of the record and on what it is bound to.
        let tag = record.last_chunk::<16>().copied().unwrap_or_default();
        let position = LogPosition(at.position.0.saturating_add(record.len() as u64));
        let mut known = position.0.to_le_bytes().to_vec();
        known.extend_from_slice(&tag);
        ChainEnd { position, link: RecordLink(self.keys.compute_record_id(RecordDomain::SharedLog, &known)) }
    }
}

/// The error of a log that cannot be read at a place.
pub(crate) fn damage_error(position: LogPosition, reason: impl std::fmt::Display) -> SharedLogError {
    SharedLogError::Damaged { engine: "the log".into(), reason: format!("at byte {}: {reason}", position.0) }
}
