//! The object that says who may append to the log, and where it begins.
//!
//! Invariant: it changes by compare-and-swap only. Epochs only grow, the end of a sealed epoch never changes.

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use crate::log::{LogEpoch, LogIncarnation, LogPosition, ServerRecord};

/// What the object begins with.
const MAGIC: [u8; 7] = *b"vlm-lgh";
/// Version of the format.
const VERSION: u8 = 1;
/// Longest head that is read, bytes.
pub(super) const HEAD_MAX: u64 = 1 << 20;
/// Most epochs in a head: one for each claim since the log was discarded last.
const EPOCHS_MAX: usize = 1 << 14;

/// The appends of an epoch that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SealedEpoch {
    /// The epoch.
    pub epoch: LogEpoch,
    /// Where its first append begins.
    pub start: LogPosition,
    /// Where its last append ends. What was stored behind that came too late, and is no part of the log.
    pub end: LogPosition,
}

/// The state of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogHead {
    /// Which log it is.
    pub incarnation: LogIncarnation,
    /// The oldest position that is kept.
    pub start: LogPosition,
    /// Epochs that have ended, and of which something is kept, in order.
    pub sealed: Vec<SealedEpoch>,
    /// Epochs whose ends are not decided, in order. The last one is the current one. Empty if nobody has claimed the
    /// log.
    pub open: Vec<LogEpoch>,
    /// Where the first open epoch begins.
    pub open_start: LogPosition,
    /// Who claimed the current epoch.
    pub server: Option<ServerRecord>,
    /// Whether it has given the log up.
    pub is_released: bool,
    /// Counts claims and renewals, so that each of them is another head.
    pub renewals: u64,
}

impl LogHead {
    /// The head of an empty log.
    pub fn new(incarnation: LogIncarnation) -> Self {
        Self {
            incarnation,
            start: LogPosition(0),
            sealed: Vec::new(),
            open: Vec::new(),
            open_start: LogPosition(0),
            server: None,
            is_released: false,
            renewals: 0,
        }
    }

    /// The epoch that may append; None if nobody has claimed the log.
    pub fn current_epoch(&self) -> Option<LogEpoch> {
        self.open.last().copied()
    }

    /// The epochs that have ended and are to be sealed.
    pub fn ended_epochs(&self) -> &[LogEpoch] {
        self.open.split_last().map_or(&[], |(_, ended)| ended)
    }

    /// Encodes the object (docs/format.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_raw(&MAGIC).write_u8(VERSION).write_raw(&self.incarnation.0);
        writer.write_varint(self.start.0).write_varint(self.renewals).write_u8(self.is_released.into());
        writer.write_varint(self.sealed.len() as u64);
        for SealedEpoch { epoch, start, end } in &self.sealed {
            writer.write_varint(epoch.0).write_varint(start.0).write_varint(end.0);
        }
        writer.write_varint(self.open_start.0).write_varint(self.open.len() as u64);
        for epoch in &self.open {
            writer.write_varint(epoch.0);
        }
        match &self.server {
            None => {
                writer.write_u8(0);
            }
            Some(server) => server.encode(writer.write_u8(1)),
        }
        writer.into_vec()
    }

    /// Decodes what [`Self::encode`] wrote. Fails if its epochs are not in order.
    pub fn decode(object: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(object);
        if reader.read_array()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        match reader.read_u8()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other.into())),
        }
        let incarnation = LogIncarnation(reader.read_array()?);
        let start = LogPosition(reader.read_varint()?);
        let renewals = reader.read_varint()?;
        let is_released = match reader.read_u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Invalid("release of the log")),
        };
        // Checked before memory is taken for so many: the object may be damaged.
        let sealed_count = reader.read_count(EPOCHS_MAX)?;
        let mut sealed = Vec::with_capacity(sealed_count);
        for _ in 0..sealed_count {
            let epoch = LogEpoch(reader.read_varint()?);
            let start = LogPosition(reader.read_varint()?);
            let end = LogPosition(reader.read_varint()?);
            sealed.push(SealedEpoch { epoch, start, end });
        }
        let open_start = LogPosition(reader.read_varint()?);
        let open_count = reader.read_count(EPOCHS_MAX)?;
        let mut open = Vec::with_capacity(open_count);
        for _ in 0..open_count {
            open.push(LogEpoch(reader.read_varint()?));
        }
        let server = match reader.read_u8()? {
            0 => None,
            1 => Some(ServerRecord::decode(&mut reader)?),
            _ => return Err(DecodeError::Invalid("server of the log")),
        };
        reader.expect_end()?;
        let head = Self { incarnation, start, sealed, open, open_start, server, is_released, renewals };
        // Readers go through the epochs by their ends. Out of order, they would leave out appends without a word.
        if head.is_in_order() { Ok(head) } else { Err(DecodeError::Invalid("epochs of the log")) }
    }

    fn is_in_order(&self) -> bool {
        let epochs = || self.sealed.iter().map(|sealed| sealed.epoch).chain(self.open.iter().copied());
        let grows = epochs().zip(epochs().skip(1)).all(|(one, next)| one < next);
        // Epochs of which nothing is kept are left out of a head.
        let is_whole = self.sealed.iter().all(|sealed| sealed.start < sealed.end);
        let mut ends = self.sealed.iter().map(|sealed| sealed.end);
        let starts = self.sealed.iter().skip(1).map(|sealed| sealed.start);
        let joins = starts.chain([self.open_start]).all(|start| ends.next().is_none_or(|end| end == start));
        let first = self.sealed.first().map_or(self.open_start, |sealed| sealed.start);
        let is_kept = self.sealed.first().is_none_or(|sealed| self.start < sealed.end);
        // What is kept begins in the first epoch of which something is kept, or behind all of them.
        grows && is_whole && joins && is_kept && first <= self.start
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::{LogHead, SealedEpoch};
    use crate::log::{LogEpoch, LogIncarnation, LogPosition, ServerRecord};

    /// Heads that a log can have: lengths of sealed epochs, the number of open ones, and how much of the first is
    /// discarded.
    fn heads() -> impl Strategy<Value = LogHead> {
        let server = proptest::option::of(("[a-z]{0,9}", proptest::option::of("[a-z0-9:.]{0,20}")));
        let parts = (
            proptest::collection::vec(1_u64..1 << 40, 0..5),
            0_u64..4,
            0_u64..1 << 40,
            server,
            any::<bool>(),
        );
        parts.prop_map(|(lengths, open, discarded, server, is_released)| {
            let mut at = 7;
            let mut sealed = Vec::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let epoch = LogEpoch(2 * number as u64 + 1);
                sealed.push(SealedEpoch { epoch, start: LogPosition(at), end: LogPosition(at + length) });
                at += length;
            }
            let start = match sealed.first() {
                None => at + discarded,
                Some(first) => first.start.0 + discarded % (first.end.0 - first.start.0),
            };
            LogHead {
                incarnation: LogIncarnation([9; 16]),
                start: LogPosition(start),
                sealed,
                open: (0..open).map(|number| LogEpoch(100 + number)).collect(),
                open_start: LogPosition(at),
                server: server.map(|(host, address)| ServerRecord { host, address, instance: [3; 16] }),
                is_released,
                renewals: 12,
            }
        })
    }

    proptest! {
        #[test]
        fn heads_are_decoded_as_they_were(head in heads()) {
            let bytes = head.encode();
            prop_assert_eq!(LogHead::decode(&bytes).unwrap(), head);
            for len in 0..bytes.len() {
                prop_assert!(LogHead::decode(&bytes[..len]).is_err(), "{} bytes", len);
            }
        }

        #[test]
        fn any_bytes_are_a_head_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let with_magic = [b"vlm-lgh\x01", &bytes[..]].concat();
            if let Ok(head) = LogHead::decode(&with_magic) {
                prop_assert_eq!(head.encode(), with_magic);
            }
        }
    }

    #[test]
    fn epochs_that_overlap_are_refused() {
        let sealed = |epoch, start, end| SealedEpoch {
            epoch: LogEpoch(epoch),
            start: LogPosition(start),
            end: LogPosition(end),
        };
        let good = LogHead {
            sealed: vec![sealed(1, 0, 5), sealed(2, 5, 9)],
            open: vec![LogEpoch(3)],
            open_start: LogPosition(9),
            ..LogHead::new(LogIncarnation([1; 16]))
        };
        assert!(LogHead::decode(&good.encode()).is_ok());
        let bad = [
            LogHead { sealed: vec![sealed(1, 0, 5), sealed(2, 6, 9)], ..good.clone() },
            LogHead { sealed: vec![sealed(2, 0, 5), sealed(2, 5, 9)], ..good.clone() },
            LogHead { sealed: vec![sealed(1, 0, 5), sealed(2, 5, 5)], ..good.clone() },
            LogHead { open_start: LogPosition(8), ..good.clone() },
            LogHead { open: vec![LogEpoch(2)], ..good.clone() },
            LogHead { start: LogPosition(5), ..good.clone() },
            LogHead { start: LogPosition(3), sealed: Vec::new(), ..good },
        ];
        for head in bad {
            assert!(LogHead::decode(&head.encode()).is_err(), "{head:?}");
        }
    }
}
