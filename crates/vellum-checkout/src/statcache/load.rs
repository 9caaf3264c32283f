//! Reading a stat cache.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use vellum_host::beneath::{BeneathError, HeldDir, OpenedFile};
use vellum_host::metadata::FileStat;
use vellum_types::{BlobId, DecodeError, FieldReader, FileKind, Ino};

use super::FilesystemTime;
use super::format::{
    CHECKSUM_LEN, FOOTER_LEN, HEADER_LEN, NO_BLOCK, RECORD_LEN, StatCacheFooter, StatCacheHeader,
    StatCacheRecord, TABLE_LINE_LEN,
};

/// Why there is no usable cache. None of these is an error for the user: the files are read instead.
#[derive(Debug, thiserror::Error)]
pub enum StatCacheError {
    /// It cannot be opened or created; in most cases it does not exist.
    #[error("the stat cache cannot be opened")]
    Unreachable(#[from] BeneathError),
    /// It cannot be read or written.
    #[error("the stat cache cannot be read or written")]
    Io(#[from] std::io::Error),
    /// Its checksum is wrong: it is torn or damaged.
    #[error("the stat cache is damaged")]
    Damaged,
    /// Its structure is wrong, or that of another version.
    #[error("the stat cache is not usable: {0}")]
    Malformed(#[from] DecodeError),
    /// A number exceeds the format: more than 65,536 filesystems, or names of more than 4 GiB in one directory.
    #[error("the stat cache cannot hold {0}")]
    TooLarge(&'static str),
}

/// The block of a directory in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CachedDir(pub(super) u32);

impl CachedDir {
    /// The block of the root's entries.
    pub const ROOT: Self = Self(0);
}

/// One cached file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedEntry<'c> {
    /// Name in its directory; empty for the root.
    pub name: &'c [u8],
    /// Its inode number in the map.
    pub ino: Ino,
    /// Its attributes.
    pub stat: FileStat,
    /// Its attributes were too young: it never counts as unchanged.
    pub racy: bool,
    /// The block of its entries, if it is a directory.
    pub child: Option<CachedDir>,
}

impl CachedEntry<'_> {
    /// Whether the file need not be read again: no attribute differs, and the attributes would show any change.
    #[must_use]
    pub fn is_unchanged(&self, now: &FileStat) -> bool {
        !self.racy && self.stat.dev == now.dev && self.stat.has_same_attributes(now)
    }
}

/// One line of the directory table.
#[derive(Debug, Clone, Copy)]
struct StatCacheBlock {
    start: usize,
    count: u32,
    names_len: u32,
}

/// The position of an entry: its block and its index there.
type CachedEntryIndex = (u32, u32);

/// A stat cache in memory.
#[derive(Debug)]
pub struct StatCache {
    bytes: Vec<u8>,
    header: StatCacheHeader,
    blocks: Vec<StatCacheBlock>,
    devices: Vec<u64>,
    entries: u64,
    by_ino: OnceLock<Vec<(u64, u64, CachedEntryIndex)>>,
}

/// Checks the beginning and the end of the cache `name` in `dir`: that it was written to its end, in this version. Its
/// checksum, and so each of its bytes, is checked by [`StatCache::load`].
pub(crate) fn check_stat_cache_tables(dir: &HeldDir, name: &[u8]) -> Result<(), StatCacheError> {
    let OpenedFile { file, stat } = dir.open_file(name)?;
    let mut header = [0; HEADER_LEN];
    file.read_exact_at(&mut header, 0)?;
    StatCacheHeader::decode(&mut FieldReader::new(&header))?;
    let mut footer = [0; FOOTER_LEN];
    let footer_start = stat.size.checked_sub(FOOTER_LEN as u64).ok_or(DecodeError::Truncated)?;
    file.read_exact_at(&mut footer, footer_start)?;
    let footer = StatCacheFooter::decode(&mut FieldReader::new(&footer))?;
    let tables_len = u64::from(footer.blocks)
        .saturating_mul(TABLE_LINE_LEN as u64)
        .saturating_add(u64::from(footer.devices) * 8);
    let records_len = footer.entries.saturating_add(1).saturating_mul(RECORD_LEN as u64);
    let least = tables_len.saturating_add(records_len).saturating_add(HEADER_LEN as u64);
    if least > footer_start { Err(StatCacheError::Damaged) } else { Ok(()) }
}

impl StatCache {
    /// Reads the cache `name` in `dir`.
    pub fn load(dir: &HeldDir, name: &[u8]) -> Result<Self, StatCacheError> {
        let OpenedFile { mut file, stat } = dir.open_file(name)?;
        // With room for one byte more: a full buffer would have to grow before the end of the file shows.
        let mut bytes = Vec::with_capacity(usize::try_from(stat.size).unwrap_or(0).saturating_add(1));
        file.read_to_end(&mut bytes)?;
        Self::decode(bytes)
    }

    /// Verifies bytes and decodes their tables.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, StatCacheError> {
        let content_len = bytes.len().checked_sub(CHECKSUM_LEN).ok_or(DecodeError::Truncated)?;
        let (content, checksum) = bytes.split_at_checked(content_len).ok_or(DecodeError::Truncated)?;
        // Magic and version come first, so that a cache of another version is not called damaged.
        let header = StatCacheHeader::decode(&mut FieldReader::new(content))?;
        if blake3::hash(content).as_bytes() != checksum {
            return Err(StatCacheError::Damaged);
        }
        let tail = content_len.checked_sub(FOOTER_LEN - CHECKSUM_LEN).ok_or(DecodeError::Truncated)?;
        let footer = StatCacheFooter::decode(&mut FieldReader::new(content.get(tail..).unwrap_or_default()))?;
        // The counts may be anything. Saturating arithmetic turns impossible ones into a table that is longer
        // than the file, which is refused.
        let tables_len = usize::try_from(footer.blocks).unwrap_or(usize::MAX).saturating_mul(TABLE_LINE_LEN)
            + usize::try_from(footer.devices).unwrap_or(usize::MAX).saturating_mul(8);
        let tables_start = tail.checked_sub(tables_len).ok_or(DecodeError::Truncated)?;
        let mut reader = FieldReader::new(content.get(tables_start..tail).unwrap_or_default());
        let devices = (0..footer.devices).map(|_| reader.read_u64()).collect::<Result<_, _>>()?;
        let blocks = read_blocks(&mut reader, footer.blocks, tables_start)?;
        Ok(Self { header, blocks, devices, entries: footer.entries, by_ino: OnceLock::new(), bytes })
    }

    /// The root of the map that it describes.
    #[must_use]
    pub fn base_root(&self) -> BlobId {
        self.header.base
    }

    /// Updates the root's device number to `dev`. Device numbers can change at each boot, and a new one for the same
    /// filesystem must not make all files look changed.
    pub(crate) fn set_root_device(&mut self, dev: u64) {
        let root = self
            .bytes
            .get(HEADER_LEN..HEADER_LEN + RECORD_LEN)
            .and_then(|bytes| StatCacheRecord::decode(bytes).ok());
        if let Some(line) = root.and_then(|root| self.devices.get_mut(usize::from(root.device))) {
            *line = dev;
        }
    }

    /// The filesystem's time before the contents were read.
    #[must_use]
    pub fn filesystem_time(&self) -> FilesystemTime {
        self.header.stamp
    }

    /// The number of cached files, without the root.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries
    }

    /// Whether no file is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The root directory itself.
    #[must_use]
    pub fn root_entry(&self) -> Option<CachedEntry<'_>> {
        let record = self.bytes.get(HEADER_LEN..HEADER_LEN + RECORD_LEN)?;
        self.cached_entry(StatCacheRecord::decode(record).ok()?, &[])
    }

    /// The number of entries of a directory.
    #[must_use]
    pub fn entry_count(&self, dir: CachedDir) -> u32 {
        self.find_block(dir).map_or(0, |block| block.count)
    }

    /// The entry at a position, from 0 in the order of names.
    #[must_use]
    pub fn entry_at(&self, dir: CachedDir, index: u32) -> Option<CachedEntry<'_>> {
        let block = self.find_block(dir)?;
        if index >= block.count {
            return None;
        }
        let start = block.start + index as usize * RECORD_LEN;
        let record = StatCacheRecord::decode(self.bytes.get(start..start + RECORD_LEN)?).ok()?;
        let name_start = record.name_start as usize;
        let name_end = name_start + usize::from(record.name_len);
        // Places were checked against the length of the file when the table was read, so these sums do not
        // overflow.
        let names_start = block.start + block.count as usize * RECORD_LEN;
        let names = self.bytes.get(names_start..names_start + block.names_len as usize)?;
        // A block comes after the one that refers to it, so that no walk can be endless.
        let forward = record.block == NO_BLOCK || record.block > dir.0;
        self.cached_entry(record, names.get(name_start..name_end)?).filter(|_| forward)
    }

    /// All entries of a directory, in the order of their names.
    pub fn entries(&self, dir: CachedDir) -> impl Iterator<Item = CachedEntry<'_>> {
        (0..self.entry_count(dir)).filter_map(move |index| self.entry_at(dir, index))
    }

    /// The entry with a name.
    #[must_use]
    pub fn find_entry(&self, dir: CachedDir, name: &[u8]) -> Option<CachedEntry<'_>> {
        let mut low = 0;
        let mut high = self.entry_count(dir);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry_at(dir, middle)?;
            match entry.name.cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(entry),
            }
        }
        None
    }

    /// All names under which a file of the filesystem was cached, which shows the old names of a renamed file. Its
    /// index is built at the first call.
    pub fn find_by_host_inode(&self, dev: u64, ino: u64) -> impl Iterator<Item = CachedEntry<'_>> {
        let index = self.by_ino.get_or_init(|| self.build_index());
        let start = index.partition_point(|(d, i, _)| (*d, *i) < (dev, ino));
        let same =
            index.get(start..).unwrap_or_default().iter().take_while(move |(d, i, _)| (*d, *i) == (dev, ino));
        same.filter_map(|(_, _, (block, place))| self.entry_at(CachedDir(*block), *place))
    }

    fn build_index(&self) -> Vec<(u64, u64, CachedEntryIndex)> {
        let mut index =
            // The count is what the file says: no more is reserved than there is room for in it.
            Vec::with_capacity(usize::try_from(self.entries).unwrap_or(0).min(self.bytes.len() / RECORD_LEN));
        for (number, block) in (0..).zip(&self.blocks) {
            for place in 0..block.count {
                if let Some(entry) = self.entry_at(CachedDir(number), place) {
                    index.push((entry.stat.dev, entry.stat.ino, (number, place)));
                }
            }
        }
        index.sort_unstable();
        index
    }

    fn find_block(&self, dir: CachedDir) -> Option<&StatCacheBlock> {
        self.blocks.get(dir.0 as usize)
    }

    fn cached_entry<'c>(&'c self, record: StatCacheRecord, name: &'c [u8]) -> Option<CachedEntry<'c>> {
        let dev = *self.devices.get(usize::from(record.device))?;
        let child = (record.stat.kind == FileKind::Dir && record.block != NO_BLOCK)
            .then_some(CachedDir(record.block));
        Some(CachedEntry {
            name,
            ino: record.ino,
            stat: FileStat { dev, ..record.stat },
            racy: record.racy,
            child,
        })
    }
}

/// Reads the directory table, and checks that every block lies between the header and the tables.
fn read_blocks(
    reader: &mut FieldReader<'_>,
    count: u32,
    end: usize,
) -> Result<Vec<StatCacheBlock>, DecodeError> {
    // A table of so many lines was found in the file, so that the count can be trusted.
    let mut blocks = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let start = usize::try_from(reader.read_u64()?).map_err(|_| DecodeError::Invalid("block start"))?;
        let block = StatCacheBlock { start, count: reader.read_u32()?, names_len: reader.read_u32()? };
        let len = (block.count as usize).saturating_mul(RECORD_LEN).saturating_add(block.names_len as usize);
        if start < HEADER_LEN || start.saturating_add(len) > end {
            return Err(DecodeError::Invalid("block start"));
        }
        blocks.push(block);
    }
    Ok(blocks)
}
