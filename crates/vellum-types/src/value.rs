//! The map's values: attributes, directory entries, extents, and the filesystem's own record.
//!
//! Invariant: a value that decodes is in range (known kind, legal mode bits, nanoseconds below one second, sizes
//! that `off_t` can hold), and encoding it again gives the same bytes: equal states have equal encodings.

mod bare;

pub use bare::BareInodeAttr;

use crate::codec::{DecodeError, FieldReader, FieldWriter};
use crate::id::{BlobId, Ino};
use crate::key::check_name;
use crate::limits::{EXTENT_MAX, FILE_SIZE_MAX, INLINE_MAX, NAME_MAX, SYMLINK_MAX};

/// Permission bits, set-id bits and the sticky bit.
pub const MODE_MASK: u32 = 0o7777;

/// The kind of file that an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The byte that stands for this kind in stored values.
    #[must_use]
    pub fn as_byte(self) -> u8 {
        match self {
            // The numbers are stored, and stay if the variants are put into another order.
            Self::File => 0,
            Self::Dir => 1,
            Self::Symlink => 2,
            Self::Fifo => 3,
            Self::Socket => 4,
            Self::CharDevice => 5,
            Self::BlockDevice => 6,
        }
    }

    /// The kind that a stored byte stands for.
    pub fn from_byte(byte: u8) -> Result<Self, DecodeError> {
        match byte {
            0 => Ok(Self::File),
            1 => Ok(Self::Dir),
            2 => Ok(Self::Symlink),
            3 => Ok(Self::Fifo),
            4 => Ok(Self::Socket),
            5 => Ok(Self::CharDevice),
            6 => Ok(Self::BlockDevice),
            _ => Err(DecodeError::Invalid("file kind")),
        }
    }

    /// The letter that `ls -l` shows for it.
    #[must_use]
    pub fn type_letter(self) -> char {
        match self {
            Self::File => '-',
            Self::Dir => 'd',
            Self::Symlink => 'l',
            Self::Fifo => 'p',
            Self::Socket => 's',
            Self::CharDevice => 'c',
            Self::BlockDevice => 'b',
        }
    }
}

/// A moment in Unix time, to the nanosecond; seconds may be negative (before 1970).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixTime {
    /// Whole seconds since 1970, rounded down.
    pub secs: i64,
    /// Nanoseconds within the second, below 10^9.
    pub nanos: u32,
}

impl UnixTime {
    /// Appends it as the formats have it.
    pub fn encode(self, writer: &mut FieldWriter) {
        // Signed, since files may have times before 1970.
        writer.write_signed_varint(self.secs).write_varint(u64::from(self.nanos));
    }

    /// Reads what `encode` wrote; a second has less than 10^9 nanoseconds.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let secs = reader.read_signed_varint()?;
        let nanos = reader.read_varint_u32()?;
        // A moment has one form: more nanoseconds would be another second.
        if nanos >= 1_000_000_000 {
            return Err(DecodeError::Invalid("nanoseconds"));
        }
        Ok(Self { secs, nanos })
    }
}

/// How a file's content is cut into chunks; a property that a file keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ChunkingMode {
    /// Content-defined boundaries.
    #[default]
    Content,
    /// Aligned blocks of [`crate::value::FIXED_BLOCK`] bytes, for files that are overwritten in place.
    Fixed,
}

/// Block size of [`ChunkingMode::Fixed`], bytes: the usual page group of databases.
pub const FIXED_BLOCK: usize = 16 << 10;

/// An inode's attributes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InodeAttr {
    /// Its kind.
    pub kind: FileKind,
    /// The lowest twelve mode bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content; 0 for all but files and symlinks.
    pub size: u64,
    /// Directory entries that name it (for a directory: 2 and its subdirectories). 0 is an orphan: it is open and
    /// has no name any more; published trees hold none.
    pub nlink: u32,
    /// Last change of content.
    pub mtime: UnixTime,
    /// Last access; equal to `mtime` where it is not recorded.
    pub atime: UnixTime,
    /// Last change of attributes; equal to `mtime` where it is not recorded.
    pub ctime: UnixTime,
    /// Creation; equal to `mtime` where it is not recorded.
    pub btime: UnixTime,
    /// Device number, of devices only.
    pub rdev: u64,
    /// Distinguishes reuses of one inode number.
    pub generation: u64,
    /// Directory of the first link ([`Ino::SUPER`] for the root and for orphans).
    pub parent: Ino,
    /// Name of the first link (empty for the root and for orphans).
    pub name: Vec<u8>,
    /// Target of a symlink.
    pub target: Vec<u8>,
    /// Whole content of a small file; then it has no extents.
    pub inline: Option<Vec<u8>>,
    /// How content is cut.
    pub chunking: ChunkingMode,
}

/// The attributes of an inode up to its inline content, and which parts follow according to the flags.
struct DecodedFields {
    attr: InodeAttr,
    flags: u8,
}

// Bits of a stored byte, of which one is still free: they never get another meaning.
const HAS_ATIME: u8 = 1;
const HAS_CTIME: u8 = 2;
const HAS_BTIME: u8 = 4;
const HAS_RDEV: u8 = 8;
const HAS_GENERATION: u8 = 16;
const HAS_INLINE: u8 = 32;
const IS_FIXED: u8 = 64;

impl InodeAttr {
    /// Attributes of a new inode: everything else empty or zero.
    #[must_use]
    pub fn new(kind: FileKind, mode: u32) -> Self {
        Self {
            kind,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            nlink: 1,
            mtime: UnixTime::default(),
            atime: UnixTime::default(),
            ctime: UnixTime::default(),
            btime: UnixTime::default(),
            rdev: 0,
            generation: 0,
            // What has no name has no other parent: decoding demands the same.
            parent: Ino::SUPER,
            name: Vec::new(),
            target: Vec::new(),
            inline: None,
            chunking: ChunkingMode::Content,
        }
    }

    /// Sets all four times to one moment: what a checked-out directory records.
    pub fn set_all_times(&mut self, time: UnixTime) {
        (self.mtime, self.atime, self.ctime, self.btime) = (time, time, time, time);
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let inline_len = self.inline.as_ref().map_or(0, Vec::len);
        let mut writer = FieldWriter::from_vec(Vec::with_capacity(self.fields_capacity() + inline_len));
        self.encode_fields(&mut writer, self.inline.is_some());
        if let Some(content) = &self.inline {
            writer.write_raw(content);
        }
        writer.into_vec()
    }

    /// Bytes that the stored form takes without inline content, at most or a little more.
    fn fields_capacity(&self) -> usize {
        // Enough for most inodes: if it is not, the buffer grows once more.
        64 + self.name.len() + self.target.len()
    }

    /// Appends the stored form up to the inline content, which is its end.
    fn encode_fields(&self, writer: &mut FieldWriter, has_inline: bool) {
        // Kind and flags come first, because they tell which fields follow.
        writer.write_u8(self.kind.as_byte()).write_u8(self.encode_flags(has_inline));
        writer
            .write_varint(u64::from(self.mode))
            .write_varint(u64::from(self.uid))
            .write_varint(u64::from(self.gid));
        writer.write_varint(self.size).write_varint(u64::from(self.nlink));
        writer.write_varint(self.parent.0).write_bytes(&self.name);
        self.mtime.encode(writer);
        // In a checked-out directory all four times are equal, and take the room of one.
        for time in [self.atime, self.ctime, self.btime] {
            if time != self.mtime {
                time.encode(writer);
            }
        }
        // What is no device has 0 here, which is left out: the flags say so.
        if self.rdev != 0 {
            writer.write_varint(self.rdev);
        }
        if self.generation != 0 {
            writer.write_varint(self.generation);
        }
        // The kind announces it, so that it needs no flag.
        if self.kind == FileKind::Symlink {
            writer.write_bytes(&self.target);
        }
    }

    fn encode_flags(&self, has_inline: bool) -> u8 {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        flag(self.atime != self.mtime, HAS_ATIME)
            | flag(self.ctime != self.mtime, HAS_CTIME)
            | flag(self.btime != self.mtime, HAS_BTIME)
            | flag(self.rdev != 0, HAS_RDEV)
            | flag(self.generation != 0, HAS_GENERATION)
            | flag(has_inline, HAS_INLINE)
            | flag(self.chunking == ChunkingMode::Fixed, IS_FIXED)
    }

    /// Reads the stored form; refuses what no `encode` writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let DecodedFields { mut attr, flags } = Self::decode_fields(&mut reader)?;
        if flags & HAS_INLINE != 0 {
            // Inline content is the end of the value, and has no length of its own.
            let content = reader.read_rest();
            attr.check_inline_len(content.len())?;
            attr.inline = Some(content.to_vec());
        }
        reader.expect_end()?;
        Ok(attr)
    }

    /// Reads what `encode_fields` wrote. Inline content, if the flags announce it, is the rest.
    fn decode_fields(reader: &mut FieldReader<'_>) -> Result<DecodedFields, DecodeError> {
        let kind = FileKind::from_byte(reader.read_u8()?)?;
        let flags = reader.read_u8()?;
        let mut attr = Self::new(kind, reader.read_varint_u32()?);
        attr.uid = reader.read_varint_u32()?;
        attr.gid = reader.read_varint_u32()?;
        attr.size = reader.read_varint()?;
        attr.nlink = reader.read_varint_u32()?;
        attr.parent = Ino(reader.read_varint()?);
        attr.name = reader.read_bytes(NAME_MAX)?.to_vec();
        attr.mtime = UnixTime::decode(reader)?;
        attr.decode_optional(flags, reader)?;
        // When all fields are read, because what one of them may be depends on others.
        attr.check_consistency(flags)?;
        Ok(DecodedFields { attr, flags })
    }

    /// Reads the stored form as published trees hold it: with a name, for orphans belong to live worktrees.
    pub fn decode_published(bytes: &[u8]) -> Result<Self, DecodeError> {
        let attr = Self::decode(bytes)?;
        if attr.nlink == 0 { Err(DecodeError::Invalid("link count")) } else { Ok(attr) }
    }

    fn decode_optional(&mut self, flags: u8, reader: &mut FieldReader<'_>) -> Result<(), DecodeError> {
        let mtime = self.mtime;
        // A time without its flag equals `mtime`.
        let mut time = |bit| if flags & bit == 0 { Ok(mtime) } else { UnixTime::decode(reader) };
        self.atime = time(HAS_ATIME)?;
        self.ctime = time(HAS_CTIME)?;
        self.btime = time(HAS_BTIME)?;
        if flags & HAS_RDEV != 0 {
            self.rdev = reader.read_varint()?;
        }
        if flags & HAS_GENERATION != 0 {
            self.generation = reader.read_varint()?;
        }
        if self.kind == FileKind::Symlink {
            self.target = reader.read_bytes(SYMLINK_MAX)?.to_vec();
        }
        if flags & IS_FIXED != 0 {
            self.chunking = ChunkingMode::Fixed;
        }
        Ok(())
    }

    fn check_consistency(&self, flags: u8) -> Result<(), DecodeError> {
        let ensure = |good: bool, field| if good { Ok(()) } else { Err(DecodeError::Invalid(field)) };
        // A time that equals `mtime` and a number that is zero are not stored: other flags would be a second form of
        // the same attributes.
        ensure(flags == self.encode_flags(flags & HAS_INLINE != 0), "flags")?;
        ensure(self.mode & !MODE_MASK == 0, "mode")?;
        ensure(self.size <= FILE_SIZE_MAX, "size")?;
        if self.name.is_empty() {
            // Only the root and orphans have no name. Their parent is the record of the filesystem.
            ensure(self.parent == Ino::SUPER && (self.kind == FileKind::Dir || self.nlink == 0), "name")?;
        } else {
            // The name is one link at least.
            ensure(self.nlink > 0, "link count")?;
            check_name(&self.name)?;
        }
        if self.kind == FileKind::Symlink {
            // The kernel takes a target as a C string.
            ensure(!self.target.is_empty() && !self.target.contains(&0), "symlink target")?;
        }
        Ok(())
    }

    /// Refuses inline content of a length that these attributes cannot have.
    fn check_inline_len(&self, len: usize) -> Result<(), DecodeError> {
        if self.kind != FileKind::File || len > INLINE_MAX {
            return Err(DecodeError::Invalid("inline content"));
        }
        // Content is inline as a whole or not at all.
        if len as u64 == self.size { Ok(()) } else { Err(DecodeError::Invalid("size")) }
    }
}

/// A directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dentry {
    /// The inode that the entry names.
    pub ino: Ino,
    /// Its kind, so that a listing needs no attributes.
    pub kind: FileKind,
}

impl Dentry {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u8(self.kind.as_byte()).write_varint(self.ino.0);
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let kind = FileKind::from_byte(reader.read_u8()?)?;
        let ino = Ino(reader.read_varint()?);
        reader.expect_end()?;
        // No entry names the root, and the record of the filesystem is no file.
        if ino <= Ino::ROOT {
            return Err(DecodeError::Invalid("inode number"));
        }
        Ok(Self { ino, kind })
    }
}

/// Where an extent's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentSource {
    /// Nowhere: it reads as zeros. A range that no extent covers is a hole too.
    Hole,
    /// In a chunk, from the byte `skip` of it on.
    Chunk {
        /// The chunk.
        id: BlobId,
        /// Bytes of the chunk before the extent's first.
        skip: u32,
    },
    /// In the local write log, not yet published.
    WriteLog {
        /// Number of the segment.
        segment: u64,
        /// Byte offset in the segment.
        offset: u64,
    },
}

/// A piece of a file's content; its offset is in its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Bytes that it covers: 1 to [`EXTENT_MAX`].
    pub len: u64,
    /// Where they are.
    pub source: ExtentSource,
}

impl Extent {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Enough for the usual extent: one in a chunk, whose id has 32 bytes.
        let mut writer = FieldWriter::from_vec(Vec::with_capacity(40));
        match &self.source {
            ExtentSource::Hole => writer.write_u8(0).write_varint(self.len),
            ExtentSource::Chunk { id, skip } => writer
                .write_u8(1)
                .write_varint(self.len)
                .write_raw(id.as_bytes())
                .write_varint(u64::from(*skip)),
            ExtentSource::WriteLog { segment, offset } => {
                writer.write_u8(2).write_varint(self.len).write_varint(*segment).write_varint(*offset)
            }
        };
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let tag = reader.read_u8()?;
        let len = reader.read_varint()?;
        let source = match tag {
            0 => ExtentSource::Hole,
            1 => ExtentSource::Chunk { id: BlobId(reader.read_array()?), skip: reader.read_varint_u32()? },
            2 => ExtentSource::WriteLog { segment: reader.read_varint()?, offset: reader.read_varint()? },
            _ => return Err(DecodeError::Invalid("extent source")),
        };
        reader.expect_end()?;
        // An empty extent would take the key of the one that begins there, and a longer one would be overlooked by those who
        // look for what covers an offset.
        if len == 0 || len > EXTENT_MAX {
            return Err(DecodeError::Invalid("extent length"));
        }
        Ok(Self { len, source })
    }
}

/// The record of the filesystem as a whole, under the key [`crate::MapKey::for_attr`] of [`Ino::SUPER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SuperBlock {
    /// The next inode number to give out; none at or above it is in use.
    pub next_ino: Ino,
}

impl SuperBlock {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_varint(self.next_ino.0);
        writer.into_vec()
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let next_ino = Ino(reader.read_varint()?);
        reader.expect_end()?;
        // The numbers up to that of the root are given out from the beginning.
        if next_ino <= Ino::ROOT {
            return Err(DecodeError::Invalid("inode number"));
        }
        Ok(Self { next_ino })
    }
}

#[cfg(test)]
mod tests;
