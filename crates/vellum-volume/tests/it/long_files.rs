//! Files of very many extents, of which only some are decoded at a time: they read as if all of them were.

use rustix::io::Errno;
use vellum_map::MapBuilder;
use vellum_types::limits::EXTENT_MAX;
use vellum_types::value::SuperBlock;
use vellum_types::{BlobId, BlobKind, Extent, ExtentSource, FileKind, Ino, InodeAttr, MapKey};
use vellum_volume::tree::{FsTree, SeekTarget, StateReader};
use vellum_volume::{Volume, VolumeError};

use crate::model::noise;
use crate::world::{SEALED, World};

const FILE: Ino = Ino(2);

/// What a reader may fail with.
#[derive(Debug)]
enum ReadFailure {
    Posix(Errno),
    Volume(VolumeError),
}

impl From<Errno> for ReadFailure {
    fn from(errno: Errno) -> Self {
        Self::Posix(errno)
    }
}

impl From<VolumeError> for ReadFailure {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

/// Puts a file with these extents and these extended attributes into a volume.
fn store_file(
    volume: &Volume,
    size: u64,
    xattrs: &[(&[u8], &[u8])],
    extents: impl FnOnce(&mut dyn FnMut(&[u8]) -> BlobId) -> Vec<(u64, Extent)>,
) -> FsTree {
    let mut session = volume.begin_write_session().unwrap();
    let root = {
        let extents = extents(&mut |content| session.put_blob(BlobKind::Chunk, content).unwrap());
        let mut builder = MapBuilder::new(volume.map_shape(), &session);
        let mut push = |key: MapKey, value: &[u8]| builder.push_entry(key.as_bytes(), value).unwrap();
        push(MapKey::for_attr(Ino::SUPER), &SuperBlock { next_ino: Ino(3) }.encode());
        push(MapKey::for_attr(Ino::ROOT), &InodeAttr::new(FileKind::Dir, 0o755).encode());
        let mut attr = InodeAttr::new(FileKind::File, 0o644);
        (attr.size, attr.parent, attr.name) = (size, Ino::ROOT, b"file".to_vec());
        push(MapKey::for_attr(FILE), &attr.encode());
        xattrs.iter().for_each(|(name, value)| push(MapKey::for_xattr(FILE, name), value));
        extents.iter().for_each(|(at, extent)| push(MapKey::for_extent(FILE, *at), &extent.encode()));
        builder.finish_tree().unwrap()
    };
    session.flush_blobs().unwrap();
    session.end_session().unwrap();
    volume.open_tree(root)
}

/// A file of some 70 MiB in thousands of extents: parts of chunks, holes that are stored and such that are not, and now and then
/// a long extent. With its content, and its runs of data and of holes in turn as their ends.
struct LongFile {
    content: Vec<u8>,
    runs: Vec<(bool, u64)>,
}

impl LongFile {
    fn new() -> Self {
        Self { content: Vec::new(), runs: Vec::new() }
    }

    fn push(&mut self, is_data: bool, bytes: &[u8]) {
        self.content.extend_from_slice(bytes);
        let end = self.content.len() as u64;
        match self.runs.last_mut() {
            Some((last, until)) if *last == is_data => *until = end,
            Some(_) | None => self.runs.push((is_data, end)),
        }
    }

    fn extents(&mut self, put: &mut dyn FnMut(&[u8]) -> BlobId) -> Vec<(u64, Extent)> {
        let chunk = noise(1, 20_000);
        let long = noise(2, 3 << 20);
        let ids = [put(&chunk), put(&long)];
        let mut extents = Vec::new();
        let mut number = 0_usize;
        while self.content.len() < 70 << 20 {
            number += 1;
            let at = self.content.len() as u64;
            let skip = number % 9000;
            let part = match number % 5 {
                // Longer than what is left of a window.
                _ if number.is_multiple_of(1000) => Some((ids[1], &long[7..])),
                0 => Some((ids[0], &chunk[skip..skip + 9001])),
                1 | 2 => Some((ids[0], &chunk[skip..skip + 10_000])),
                3 => {
                    extents.push((at, Extent { len: 5000, source: ExtentSource::Hole }));
                    None
                }
                _ => None,
            };
            match part {
                Some((id, bytes)) => {
                    let whole = if id == ids[0] { chunk.len() } else { long.len() };
                    let skip = if id == ids[0] { skip } else { whole - bytes.len() };
                    let source = ExtentSource::Chunk { id, skip: u32::try_from(skip).unwrap() };
                    extents.push((at, Extent { len: bytes.len() as u64, source }));
                    self.push(true, bytes);
                }
                None => self.push(false, &[0; 5000]),
            }
        }
        // It ends in a hole that is not stored.
        self.push(false, &[0; 12_345]);
        assert!(extents.len() > 4000, "{}", extents.len());
        extents
    }

    /// Where the next data or hole is.
    fn find(&self, offset: u64, wants_data: bool) -> Option<u64> {
        let mut start = 0;
        for (is_data, end) in &self.runs {
            if *end > offset && *is_data == wants_data {
                return Some(start.max(offset));
            }
            start = *end;
        }
        (!wants_data && offset < start).then_some(start)
    }
}

#[test]
fn a_file_of_thousands_of_extents_reads_the_same_at_any_offset() {
    let world = World::new(SEALED);
    // Its size has to be known before, and is the same each time.
    let mut sized = LongFile::new();
    sized.extents(&mut |_| BlobId([0; 32]));
    let size = sized.content.len() as u64;
    let mut file = LongFile::new();
    let xattrs: [(&[u8], &[u8]); 2] = [(b"user.a", b"1"), (b"user.b", b"22")];
    let tree = store_file(&world.volume, size, &xattrs, |put| file.extents(put));
    let reader: &dyn StateReader<ReadFailure> = &tree;
    assert_eq!(&*reader.getxattr(FILE, b"user.b").unwrap(), b"22");
    assert_eq!(reader.listxattr(FILE).unwrap(), [b"user.a".to_vec(), b"user.b".to_vec()]);
    // In order, then here and there, also over the edges of what is decoded together.
    let mut at = 0;
    while at < size {
        let read = reader.read(FILE, at, 1 << 20).unwrap();
        assert!(read == file.content[at as usize..][..read.len()], "{at}");
        at += read.len() as u64;
    }
    for number in 0..400_u64 {
        let edge = (number % 5) << 24;
        let offset = (edge + number * 7919 % 9_000_000).saturating_sub(number * 31 % 50_000).min(size);
        let len = (number * 2659 % 120_000).min(size - offset);
        let read = reader.read(FILE, offset, len as usize).unwrap();
        assert!(read == file.content[offset as usize..(offset + len) as usize], "{offset} {len}");
        for (target, wants_data) in [(SeekTarget::Data, true), (SeekTarget::Hole, false)] {
            let found = match reader.seek_data_or_hole(FILE, offset, target) {
                Ok(found) => Some(found),
                Err(ReadFailure::Posix(Errno::NXIO)) => None,
                Err(error) => panic!("{error:?}"),
            };
            assert_eq!(found, file.find(offset, wants_data), "{target:?} from {offset}");
        }
    }
    assert!(reader.read(FILE, size, 10).unwrap().is_empty());
    assert!(reader.read(FILE, u64::MAX - 5, 10).unwrap().is_empty());
    let mut start = 0;
    let stored = file.runs.iter().map(|(is_data, end)| {
        let len = end - std::mem::replace(&mut start, *end);
        if *is_data { len } else { 0 }
    });
    let attr = reader.inode_attr(FILE).unwrap();
    let stored: u64 = stored.sum();
    assert_eq!(reader.stored_bytes(FILE, &attr).unwrap(), stored);
    assert_eq!(reader.stored_bytes(FILE, &attr).unwrap(), stored, "counted once");
}

#[test]
fn forged_extents_of_a_long_file_are_errors_and_never_other_content() {
    let hole = |len| Extent { len, source: ExtentSource::Hole };
    let log = Extent { len: 10, source: ExtentSource::WriteLog { segment: 1, offset: 0 } };
    let far = 40 << 20;
    let size = 80 << 20;
    let bad = [
        (far, hole(EXTENT_MAX + 1), "extent length"),
        (size - 5, hole(6), "too long"),
        (far - 5, hole(20_000), "overlapping"),
        (far, log, "write log"),
    ];
    for (at, extent, reason) in bad {
        let world = World::new(SEALED);
        let tree = store_file(&world.volume, size, &[], |put| {
            let id = put(&noise(3, 100));
            let source = ExtentSource::Chunk { id, skip: 0 };
            let mut extents: std::collections::BTreeMap<_, _> =
                (0..5000).map(|number| (number * 10_000, Extent { len: 100, source })).collect();
            extents.insert(at, extent);
            extents.into_iter().collect()
        });
        let reader: &dyn StateReader<ReadFailure> = &tree;
        // What is elsewhere can be read all the same.
        assert_eq!(reader.read(FILE, 50, 100).unwrap(), [&noise(3, 100)[50..], &[0; 50]].concat());
        let failure = reader.read(FILE, at, 20_000).unwrap_err();
        let ReadFailure::Volume(error) = failure else { panic!("{failure:?}") };
        assert!(error.to_string().contains(reason), "{error}");
    }
}
