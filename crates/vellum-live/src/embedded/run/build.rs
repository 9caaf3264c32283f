//! Makes the file of a run, entry by entry.

use std::io;

use vellum_types::FieldWriter;

use super::MAGIC;
use super::filter::{KeyHash, RunFilter, hash};
use crate::embedded::folder::EngineFile;
use crate::embedded::frame::{FileHeader, FrameWriter};
use crate::embedded::suffix::{GROUP_LEN, GroupKey};

/// Bytes of a block from which on the next entry begins a new one: what one read of a disk brings.
const BLOCK_TARGET: usize = 4096;

/// A run being written.
pub(crate) struct RunBuilder<'f> {
    frames: FrameWriter<'f>,
    group: GroupKey,
    block: FieldWriter,
    /// Bytes in `block`.
    filled: usize,
    /// The first key of the block.
    first: Vec<u8>,
    last: Vec<u8>,
    index: FieldWriter,
    blocks: u64,
    hashes: Vec<KeyHash>,
}

impl<'f> RunBuilder<'f> {
    /// Writes to an empty file.
    pub(crate) fn new(file: &'f dyn EngineFile, number: u64, group: GroupKey) -> io::Result<Self> {
        Ok(Self {
            frames: FrameWriter::new(file, &FileHeader::new(MAGIC, number)?),
            group,
            block: FieldWriter::new(),
            filled: 0,
            first: Vec::new(),
            last: Vec::new(),
            index: FieldWriter::new(),
            blocks: 0,
            hashes: Vec::new(),
        })
    }

    /// Adds an entry; keys ascend.
    pub(crate) fn push(&mut self, rest: &[u8], value: &[u8]) -> io::Result<()> {
        if self.filled >= BLOCK_TARGET {
            self.end_block()?;
        }
        let shared = if self.filled == 0 {
            self.first = rest.to_vec();
            0
        } else {
            rest.iter().zip(&self.last).take_while(|(a, b)| a == b).count()
        };
        let own = rest.get(shared..).unwrap_or_default();
        self.block.varint(shared as u64).bytes(own).bytes(value);
        self.filled += own.len() + value.len() + 3;
        self.last.clear();
        self.last.extend_from_slice(rest);
        self.hashes.push(hash(rest));
        Ok(())
    }

    /// Writes what is left and makes the file durable.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.filled > 0 {
            self.end_block()?;
        }
        let index = self.frames.offset();
        let mut body = FieldWriter::new();
        body.varint(self.blocks).raw(&self.index.into_vec());
        self.frames.push(&body.into_vec())?;
        let filter = self.frames.offset();
        self.frames.push(RunFilter::of(&self.hashes).as_bytes())?;
        let mut trailer = FieldWriter::new();
        let mut padded = [0; GROUP_LEN];
        for (to, from) in padded.iter_mut().zip(self.group.as_bytes()) {
            *to = *from;
        }
        trailer.u8(self.group.as_bytes().len() as u8).raw(&padded);
        trailer.u64(self.hashes.len() as u64).u64(index).u64(filter);
        self.frames.push(&trailer.into_vec())?;
        self.frames.finish()
    }

    fn end_block(&mut self) -> io::Result<()> {
        let offset = self.frames.offset();
        self.frames.push(&std::mem::take(&mut self.block).into_vec())?;
        self.index.bytes(&self.first).varint(offset).varint(self.frames.offset() - offset);
        self.blocks += 1;
        self.filled = 0;
        Ok(())
    }
}
