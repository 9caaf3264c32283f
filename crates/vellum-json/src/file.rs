//! Files as a directory or a snapshot has them.

use serde::Serialize;
use vellum_types::{Extent, ExtentSource, FileKind, Ino, InodeAttr};
use vellum_volume::tree::InodeRecord;

use crate::name::NameJson;
use crate::snapshot::format_json_time;

/// The values of `kind` for a file.
#[must_use]
pub fn file_kind_name(kind: FileKind) -> &'static str {
    match kind {
        // Programs compare these words: they stay, whatever the variants are called.
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character_device",
        FileKind::BlockDevice => "block_device",
    }
}

/// A file as JSON shows it.
#[derive(Serialize)]
pub struct FileJson {
    #[serde(flatten)]
    name: NameJson,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    size: u64,
    links: u32,
    modified: String,
    inode: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<NameJson>,
    /// Where its content is, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl FileJson {
    /// The file `name` with these attributes.
    #[must_use]
    pub fn new(name: &[u8], ino: Ino, attr: &InodeAttr) -> Self {
        Self {
            name: NameJson::new(name),
            kind: file_kind_name(attr.kind),
            // As text, since JSON has no octal numbers: 420 tells nobody that it is 0644.
            mode: format!("{:04o}", attr.mode),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            links: attr.nlink,
            modified: format_json_time(attr.mtime),
            inode: ino.0,
            // Other kinds have an empty target, which would look like a symlink that leads nowhere.
            target: (attr.kind == FileKind::Symlink).then(|| NameJson::new(&attr.target)),
            state: None,
        }
    }
}

/// A file with everything that is recorded about it.
#[derive(Serialize)]
pub struct FileDetailsJson {
    #[serde(flatten)]
    item: FileJson,
    chunks: usize,
    holes: u64,
    xattrs: Vec<XattrJson>,
}

#[derive(Serialize)]
struct XattrJson {
    #[serde(flatten)]
    name: NameJson,
    size: usize,
}

impl FileDetailsJson {
    /// The file at `path`.
    #[must_use]
    pub fn new(path: &[u8], inode: &InodeRecord) -> Self {
        // Without the values, each of which may be 64 KiB of any bytes.
        let xattr =
            |(name, value): &(Vec<u8>, Vec<u8>)| XattrJson { name: NameJson::new(name), size: value.len() };
        Self {
            item: FileJson::new(path, inode.ino, &inode.attr),
            chunks: count_chunks(inode),
            holes: count_hole_bytes(inode),
            xattrs: inode.xattrs.iter().map(xattr).collect(),
        }
    }
}

fn is_data(extent: &Extent) -> bool {
    extent.source != ExtentSource::Hole
}

/// How many pieces of content a file has.
#[must_use]
pub fn count_chunks(inode: &InodeRecord) -> usize {
    inode.extents.iter().filter(|(_, extent)| is_data(extent)).count()
}

/// Bytes that nothing was written to.
#[must_use]
pub fn count_hole_bytes(inode: &InodeRecord) -> u64 {
    let data: u64 =
        inode.extents.iter().filter(|(_, extent)| is_data(extent)).map(|(_, extent)| extent.len).sum();
    // Inline content is stored as a whole, zeros included.
    match &inode.attr.inline {
        // The extents of a damaged file may have more bytes than it has.
        None if inode.attr.kind == FileKind::File => inode.attr.size.saturating_sub(data),
        _ => 0,
    }
}
