//! The encoding of records, header and footer.
//!
//! Invariant: `decode` of the output of `encode` returns an equal record. Of any other bytes it returns an error or a
//! record within its limits; it never panics.

use vellum_host::metadata::FileStat;
use vellum_types::{BlobId, DecodeError, FieldReader, FieldWriter, FileKind, Ino, UnixTime};

use super::FilesystemTime;

/// First bytes of a stat cache.
pub(super) const MAGIC: &[u8; 8] = b"VLMSTATC";
/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// Bytes of the header: magic, version, flags, base root, stamp.
pub(super) const HEADER_LEN: usize = 8 + 4 + 4 + 32 + 8 + 4 + 4 + 8;
/// Bytes of one record.
pub(super) const RECORD_LEN: usize = 88;
/// Bytes of one line of the directory table.
pub(super) const TABLE_LINE_LEN: usize = 16;
/// Bytes of the footer: counts, then the checksum.
pub(super) const FOOTER_LEN: usize = 8 + 4 + 4 + CHECKSUM_LEN;
/// Bytes of the checksum: BLAKE3.
pub(super) const CHECKSUM_LEN: usize = 32;
/// The number that means "no block", for entries that are not directories.
pub(super) const NO_BLOCK: u32 = u32::MAX;

const IS_RACY: u8 = 1;
const MAY_HAVE_HOLES: u8 = 2;
const IS_MOUNT_ROOT: u8 = 4;

/// The header: what the cache belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatCacheHeader {
    pub base: BlobId,
    pub stamp: FilesystemTime,
}

impl StatCacheHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::from_vec(Vec::with_capacity(HEADER_LEN));
        writer.write_raw(MAGIC).write_u32(VERSION).write_u32(0).write_raw(self.base.as_bytes());
        writer.write_u64(self.stamp.time.secs.cast_unsigned()).write_u32(self.stamp.time.nanos).write_u32(0);
        writer.write_u64(self.stamp.dev);
        writer.into_vec()
    }

    pub(super) fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        if reader.read_array()? != *MAGIC {
            return Err(DecodeError::Magic);
        }
        match reader.read_u32()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other)),
        }
        expect_zero(reader.read_u32()?, "flags")?;
        let base = BlobId(reader.read_array()?);
        let time = UnixTime {
            secs: reader.read_u64()?.cast_signed(),
            nanos: check_nanoseconds(reader.read_u32()?)?,
        };
        expect_zero(reader.read_u32()?, "reserved")?;
        Ok(Self { base, stamp: FilesystemTime { time, dev: reader.read_u64()? } })
    }
}

/// The footer: counts from which the positions of the tables follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatCacheFooter {
    pub entries: u64,
    pub blocks: u32,
    pub devices: u32,
}

impl StatCacheFooter {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer.write_u64(self.entries).write_u32(self.blocks).write_u32(self.devices);
        writer.into_vec()
    }

    pub(super) fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { entries: reader.read_u64()?, blocks: reader.read_u32()?, devices: reader.read_u32()? })
    }
}

/// One entry without its name, which is stored after the records of its block. `dev` of `stat` is not encoded: the
/// record has an index into the device table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatCacheRecord {
    pub ino: Ino,
    pub stat: FileStat,
    pub racy: bool,
    pub block: u32,
    pub device: u16,
    pub name_start: u32,
    pub name_len: u8,
}

impl StatCacheRecord {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let stat = &self.stat;
        let mut writer = FieldWriter::from_vec(std::mem::take(out));
        writer.write_u64(self.ino.0).write_u64(stat.ino);
        // Devices have no size and nothing else has a device number, so one field is enough for both.
        writer.write_u64(if is_device(stat.kind) { stat.rdev } else { stat.size });
        for time in [stat.mtime, stat.ctime, stat.btime] {
            writer.write_u64(time.secs.cast_unsigned());
        }
        for time in [stat.mtime, stat.ctime, stat.btime] {
            writer.write_u32(time.nanos);
        }
        writer
            .write_u32(stat.uid)
            .write_u32(stat.gid)
            .write_u32(stat.nlink)
            .write_u32(self.name_start)
            .write_u32(self.block);
        // Permissions fit into 2 bytes; the kind has a field of its own.
        let [mode_low, mode_high, ..] = stat.mode.to_le_bytes();
        writer.write_raw(&self.device.to_le_bytes()).write_raw(&[mode_low, mode_high]);
        writer
            .write_u8(stat.kind.as_byte())
            .write_u8(self.encode_flags())
            .write_u8(self.name_len)
            .write_u8(0);
        *out = writer.into_vec();
    }

    fn encode_flags(&self) -> u8 {
        let flag = |set: bool, bit| if set { bit } else { 0 };
        flag(self.racy, IS_RACY)
            | flag(self.stat.may_have_holes, MAY_HAVE_HOLES)
            | flag(self.stat.is_mount_root, IS_MOUNT_ROOT)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let ino = Ino(reader.read_u64()?);
        let host_ino = reader.read_u64()?;
        let size_or_device = reader.read_u64()?;
        let secs = [reader.read_u64()?, reader.read_u64()?, reader.read_u64()?].map(u64::cast_signed);
        let mut time =
            |secs| Ok::<_, DecodeError>(UnixTime { secs, nanos: check_nanoseconds(reader.read_u32()?)? });
        let [mtime, ctime, btime] = secs;
        let mtime = time(mtime)?;
        let ctime = time(ctime)?;
        let btime = time(btime)?;
        let uid = reader.read_u32()?;
        let gid = reader.read_u32()?;
        let nlink = reader.read_u32()?;
        let name_start = reader.read_u32()?;
        let block = reader.read_u32()?;
        let device = u16::from_le_bytes(reader.read_array()?);
        let mode = u32::from(u16::from_le_bytes(reader.read_array()?));
        let kind = FileKind::from_byte(reader.read_u8()?)?;
        let flags = reader.read_u8()?;
        let name_len = reader.read_u8()?;
        expect_zero(u32::from(reader.read_u8()?), "reserved")?;
        reader.expect_end()?;
        // Bits without a meaning would be lost when the record is written again.
        if mode > 0o7777 || flags & !(IS_RACY | MAY_HAVE_HOLES | IS_MOUNT_ROOT) != 0 {
            return Err(DecodeError::Invalid("mode or flags"));
        }
        let (size, rdev) = if is_device(kind) { (0, size_or_device) } else { (size_or_device, 0) };
        let stat = FileStat {
            kind,
            may_have_holes: flags & MAY_HAVE_HOLES != 0,
            is_mount_root: flags & IS_MOUNT_ROOT != 0,
            mode,
            uid,
            gid,
            nlink,
            size,
            ino: host_ino,
            dev: 0,
            rdev,
            mtime,
            ctime,
            btime,
        };
        Ok(Self { ino, stat, racy: flags & IS_RACY != 0, block, device, name_start, name_len })
    }
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

fn check_nanoseconds(nanos: u32) -> Result<u32, DecodeError> {
    if nanos < 1_000_000_000 { Ok(nanos) } else { Err(DecodeError::Invalid("nanoseconds")) }
}

fn expect_zero(value: u32, field: &'static str) -> Result<(), DecodeError> {
    if value == 0 { Ok(()) } else { Err(DecodeError::Invalid(field)) }
}
