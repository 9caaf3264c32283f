//! Writing a stat cache, one directory after the other.

use std::io::{BufWriter, Write};

use vellum_host::beneath::{HeldDir, ReplacePolicy, StagedFile, StagingMethod};
use vellum_host::metadata::FileStat;
use vellum_types::limits::NAME_MAX;
use vellum_types::{BlobId, FieldWriter, FileKind, Ino};

use super::format::{HEADER_LEN, NO_BLOCK, RECORD_LEN, StatCacheFooter, StatCacheHeader, StatCacheRecord};
use super::{FilesystemTime, StatCacheError};

type Result<T, E = StatCacheError> = std::result::Result<T, E>;

/// Buffer between the writer and the file, bytes: one call for some thousand records.
const WRITE_BUFFER: usize = 256 << 10;

/// The block for the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatCacheBlockId(u32);

impl StatCacheBlockId {
    /// The block of the root.
    pub const ROOT: Self = Self(0);
}

/// A file to be cached.
#[derive(Debug, Clone, Copy)]
pub struct NewStatCacheEntry<'a> {
    /// Its name; names have to be in ascending order.
    pub name: &'a [u8],
    /// Its inode number in the map.
    pub ino: Ino,
    /// Its attributes, from before its content was read.
    pub stat: &'a FileStat,
    /// Whether its attributes are too young to be trusted, by [`FilesystemTime::can_hide_change`].
    pub racy: bool,
}

/// Writes a stat cache. Memory: one directory, and 16 bytes for each directory.
pub struct StatCacheWriter {
    out: BufWriter<std::fs::File>,
    target: StagedFile,
    hasher: blake3::Hasher,
    position: u64,
    blocks: Vec<(u64, u32, u32)>,
    devices: Vec<u64>,
    entries: u64,
    current: Option<CurrentBlock>,
}

/// The directory that is being written.
struct CurrentBlock {
    block: StatCacheBlockId,
    count: u32,
    records: Vec<u8>,
    names: Vec<u8>,
}

impl StatCacheWriter {
    /// Starts a cache in `dir` that describes the map `base`. `stamp` was taken before any content was read.
    pub fn create(
        dir: &HeldDir,
        base: BlobId,
        stamp: FilesystemTime,
        root: (Ino, &FileStat),
    ) -> Result<Self> {
        let target = dir.stage_file_by(StagingMethod::Named)?;
        // Root may take a snapshot of another user's worktree, who must be able to replace the cache.
        vellum_store::set_owner_from_dir(dir, target.file()?)?;
        let out = BufWriter::with_capacity(WRITE_BUFFER, target.file()?.try_clone()?);
        let mut writer = Self {
            out,
            target,
            hasher: blake3::Hasher::new(),
            position: 0,
            blocks: vec![(0, 0, 0)],
            devices: Vec::new(),
            entries: 0,
            current: None,
        };
        writer.write_bytes(&StatCacheHeader { base, stamp }.encode())?;
        let mut record = Vec::with_capacity(RECORD_LEN);
        let (ino, stat) = root;
        let racy = stamp.can_hide_change(stat);
        let device = writer.device_index(stat.dev)?;
        StatCacheRecord {
            ino,
            stat: *stat,
            racy,
            block: StatCacheBlockId::ROOT.0,
            device,
            name_start: 0,
            name_len: 0,
        }
        .encode(&mut record);
        writer.write_bytes(&record)?;
        debug_assert_eq!(writer.position, (HEADER_LEN + RECORD_LEN) as u64);
        Ok(writer)
    }

    /// Begins the entries of another directory: the root, or one that was added as an entry.
    pub fn begin_block(&mut self, block: StatCacheBlockId) -> Result<()> {
        self.flush_block()?;
        self.current = Some(CurrentBlock { block, count: 0, records: Vec::new(), names: Vec::new() });
        Ok(())
    }

    /// Adds an entry to the current directory. For a directory it returns the block for its entries; a block that is
    /// never begun is empty.
    pub fn write_entry(&mut self, entry: &NewStatCacheEntry<'_>) -> Result<Option<StatCacheBlockId>> {
        let child = match entry.stat.kind {
            FileKind::Dir => Some(self.new_block()?),
            _ => None,
        };
        let device = self.device_index(entry.stat.dev)?;
        let current = self.current.as_mut().ok_or(StatCacheError::TooLarge("an entry of no directory"))?;
        let record = StatCacheRecord {
            ino: entry.ino,
            stat: *entry.stat,
            racy: entry.racy,
            block: child.map_or(NO_BLOCK, |block| block.0),
            device,
            name_start: u32::try_from(current.names.len())
                .map_err(|_| StatCacheError::TooLarge("the names"))?,
            // A name that is too long becomes a number that does not fit in the field, and thereby an error.
            name_len: u8::try_from(entry.name.len().min(NAME_MAX + 1))
                .map_err(|_| StatCacheError::TooLarge("a name"))?,
        };
        record.encode(&mut current.records);
        current.names.extend_from_slice(entry.name);
        current.count += 1;
        self.entries += 1;
        Ok(child)
    }

    /// Completes the cache and renames it to `name`. It is not synced: a torn cache is detected and ignored.
    pub fn commit_cache(mut self, name: &[u8]) -> Result<()> {
        self.flush_block()?;
        let blocks =
            u32::try_from(self.blocks.len()).map_err(|_| StatCacheError::TooLarge("the directories"))?;
        let devices =
            u32::try_from(self.devices.len()).map_err(|_| StatCacheError::TooLarge("the devices"))?;
        let mut tail = FieldWriter::new();
        for device in &self.devices {
            tail.write_u64(*device);
        }
        for (start, count, names_len) in &self.blocks {
            // A block that was never begun lies, empty, where the tables begin.
            tail.write_u64(if *start == 0 { self.position } else { *start })
                .write_u32(*count)
                .write_u32(*names_len);
        }
        tail.write_raw(&StatCacheFooter { entries: self.entries, blocks, devices }.encode());
        self.write_bytes(tail.as_slice())?;
        let checksum = self.hasher.finalize();
        // Not by `write_bytes`: the checksum does not cover itself.
        self.out.write_all(checksum.as_bytes())?;
        self.out.flush()?;
        self.target.commit(name, ReplacePolicy::Always)?;
        Ok(())
    }

    fn new_block(&mut self) -> Result<StatCacheBlockId> {
        let number = u32::try_from(self.blocks.len()).ok().filter(|number| *number != NO_BLOCK);
        self.blocks.push((0, 0, 0));
        number.map(StatCacheBlockId).ok_or(StatCacheError::TooLarge("the directories"))
    }

    fn device_index(&mut self, dev: u64) -> Result<u16> {
        // A tree spans a few filesystems, so a linear search is the fastest.
        let known = self.devices.iter().position(|known| *known == dev);
        let number = known.unwrap_or_else(|| {
            self.devices.push(dev);
            self.devices.len() - 1
        });
        u16::try_from(number).map_err(|_| StatCacheError::TooLarge("the devices"))
    }

    fn flush_block(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let names_len =
            u32::try_from(current.names.len()).map_err(|_| StatCacheError::TooLarge("the names"))?;
        // There is a line for each block whose id was given out.
        if let Some(line) = self.blocks.get_mut(current.block.0 as usize) {
            *line = (self.position, current.count, names_len);
        }
        self.write_bytes(&current.records)?;
        self.write_bytes(&current.names)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.position += bytes.len() as u64;
        self.out.write_all(bytes).map_err(Into::into)
    }
}
