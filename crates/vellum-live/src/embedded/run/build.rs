//! Makes the file of a run, entry by entry.

use std::io;

use vellum_types::FieldWriter;

use super::MAGIC;
use super::filter::{KeyHash, RunFilter, hash_key};
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
    pub(crate) fn push_entry(&mut self, rest: &[u8], value: &[u8]) -> io::Result<()> {
        if self.filled >= BLOCK_TARGET {
            self.end_block()?;
        }
        let shared = if self.filled == 0 {
            // The first key of a block is stored whole, so that a block can be read without the one before.
            self.first = rest.to_vec();
            0
        } else {
            rest.iter().zip(&self.last).take_while(|(a, b)| a == b).count()
        };
        let own = rest.get(shared..).unwrap_or_default();
        self.block.write_varint(shared as u64).write_bytes(own).write_bytes(value);
        self.filled += own.len() + value.len() + 3;
        self.last.clear();
        self.last.extend_from_slice(rest);
        self.hashes.push(hash_key(rest));
        Ok(())
    }

    /// Writes what is left and makes the file durable.
    pub(crate) fn finish_run(mut self) -> io::Result<()> {
        if self.filled > 0 {
            self.end_block()?;
        }
        let index = self.frames.offset();
        let mut body = FieldWriter::new();
        body.write_varint(self.blocks).write_raw(&self.index.into_vec());
        self.frames.push_frame(&body.into_vec())?;
        let filter = self.frames.offset();
        self.frames.push_frame(RunFilter::from_hashes(&self.hashes).as_bytes())?;
        let mut trailer = FieldWriter::new();
        let mut padded = [0; GROUP_LEN];
        for (to, from) in padded.iter_mut().zip(self.group.as_bytes()) {
            *to = *from;
        }
        trailer.write_u8(self.group.as_bytes().len() as u8).write_raw(&padded);
        trailer.write_u64(self.hashes.len() as u64).write_u64(index).write_u64(filter);
        self.frames.push_frame(&trailer.into_vec())?;
        self.frames.finish_file()
    }

    fn end_block(&mut self) -> io::Result<()> {
        let offset = self.frames.offset();
        self.frames.push_frame(&std::mem::take(&mut self.block).into_vec())?;
        self.index.write_bytes(&self.first).write_varint(offset).write_varint(self.frames.offset() - offset);
        self.blocks += 1;
        self.filled = 0;
        Ok(())
    }
}
