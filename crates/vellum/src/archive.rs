//! Part of a snapshot as a tar stream: POSIX headers with PAX records for all that the old header cannot say
//! (nanoseconds, long and odd names, large numbers, extended attributes).
//!
//! Invariant: a stream that ends without an error is complete. Sockets have no place in tar and are counted. A tree that is
//! too deep is refused before the first byte: each header repeats the whole path, so that a stream grows with the square of
//! the depth.

mod pax;

use std::collections::HashMap;
use std::io::{self, Write};

use tar::{EntryType, Header};
use vellum_host::ProgressMeter;
use vellum_types::{Dentry, FileKind, Ino, InodeAttr};
use vellum_volume::tree::{InodeRecord, PathBudget, PathStack};
use vellum_volume::{FsTree, Volume};

use crate::commands::cat::write_file_content;
use crate::error::{CliError, Result};
use pax::PaxRecords;

/// Unit of a tar stream, bytes.
const BLOCK: u64 = 512;

/// Longest name in the old header, bytes.
const NAME_MAX: usize = 100;

/// Largest id and size in the old header: 7 and 11 octal digits.
const ID_MAX: u32 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;

/// Writes one stream.
pub struct TarWriter<'a, W, B> {
    /// Where content comes from.
    pub volume: &'a Volume,
    /// The snapshot's tree.
    pub tree: &'a FsTree,
    /// Where the stream goes.
    pub out: W,
    /// Says what a failed write was about.
    pub blame: B,
    /// Counts files and bytes, and knows when to stop.
    pub meter: &'a ProgressMeter,
    first_links: HashMap<Ino, Vec<u8>>,
    sockets: Vec<Vec<u8>>,
}

impl<'a, W: Write, B: Fn(io::Error) -> CliError> TarWriter<'a, W, B> {
    /// A stream to `out`.
    pub fn new(volume: &'a Volume, tree: &'a FsTree, meter: &'a ProgressMeter, out: W, blame: B) -> Self {
        Self { volume, tree, out, blame, meter, first_links: HashMap::new(), sockets: Vec::new() }
    }

    /// Adds what is at `ino`: a directory's content under relative names, or one file as `name`. Gives the sockets
    /// that were left out.
    pub fn write_tree(mut self, ino: Ino, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        let kind = self.tree.expect_inode_attr(ino)?.kind;
        if kind == FileKind::Dir {
            // Before anything is written, so that a tree with such paths does not leave half an archive.
            self.check_path_lengths(ino)?;
        }
        let mut names = PathStack::default();
        names.push_entries(vec![(name.to_vec(), Dentry { ino, kind })]);
        while let Some(Dentry { ino, .. }) = names.next_entry() {
            self.meter.check_stopped()?;
            let mut inode = self.tree.read_inode(ino)?;
            self.write_entry(names.path(), &inode)?;
            let entries = std::mem::take(&mut inode.entries);
            // Damaged metadata can name one directory in two places, or in itself: without this check the walk might not
            // end.
            entries.iter().try_for_each(|(name, dentry)| self.tree.check_dentry_place(ino, name, dentry))?;
            names.push_entries(entries);
        }
        // POSIX ends an archive with two blocks of zeros.
        self.write_bytes(&[0; 2 * BLOCK as usize])?;
        self.out.flush().map_err(&self.blame)?;
        Ok(self.sockets)
    }

    /// Fails with [`VolumeError::DeepPaths`](vellum_volume::VolumeError::DeepPaths) if the paths of the entries below `dir`
    /// would take too much.
    fn check_path_lengths(&self, dir: Ino) -> Result<()> {
        let mut budget = PathBudget::default();
        let mut names = PathStack::default();
        names.push_entries(self.tree.list_entries(dir)?);
        while let Some(Dentry { ino, kind }) = names.next_entry() {
            self.meter.check_stopped()?;
            budget.charge_path(names.path())?;
            if kind == FileKind::Dir {
                names.push_entries(self.tree.list_entries(ino)?);
            }
        }
        Ok(())
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(&self.blame)
    }

    fn write_entry(&mut self, path: &[u8], inode: &InodeRecord) -> Result<()> {
        let attr = &inode.attr;
        // The old header marks directories with a slash too; the archive's own top is `./`.
        let shown = match (attr.kind, path.is_empty()) {
            (FileKind::Dir, true) => b"./".to_vec(),
            (FileKind::Dir, false) => [path, b"/"].concat(),
            _ => path.to_vec(),
        };
        if attr.kind == FileKind::Socket {
            // Tar has no type for sockets: the program that listened makes its socket anew.
            self.sockets.push(path.to_vec());
            return Ok(());
        }
        let linked = self.first_links.get(&inode.ino).cloned();
        if linked.is_none() && attr.nlink > 1 && attr.kind != FileKind::Dir {
            // Only files with several names are remembered: one entry for each file would take memory in proportion
            // to the tree.
            self.first_links.insert(inode.ino, path.to_vec());
        }
        self.write_headers(&shown, inode, linked.as_deref())?;
        if attr.kind == FileKind::File && linked.is_none() {
            write_file_content(self.volume, inode, &mut self.out, &self.blame)?;
            self.write_bytes(&vec![0; padding_len(attr.size)])?;
            self.meter.add_progress(0, attr.size);
        }
        self.meter.add_progress(1, 0);
        Ok(())
    }

    fn write_headers(&mut self, path: &[u8], inode: &InodeRecord, linked: Option<&[u8]>) -> Result<()> {
        let attr = &inode.attr;
        let mut pax = PaxRecords::default();
        let mut header = Header::new_ustar();
        header.set_entry_type(tar_entry_type(attr.kind, linked.is_some()));
        header.set_mode(attr.mode);
        // The size counts the content that follows the header, and nothing follows that of a hard link.
        let size = if attr.kind == FileKind::File && linked.is_none() { attr.size } else { 0 };
        set_numeric_fields(&mut header, &mut pax, attr, size);
        if let Some(field) = header.as_ustar_mut().map(|old| &mut old.name) {
            set_name_field(field, "path", path, &mut pax);
        }
        let target = if attr.kind == FileKind::Symlink { Some(&*attr.target) } else { linked };
        if let (Some(target), Some(field)) = (target, header.as_ustar_mut().map(|old| &mut old.linkname)) {
            set_name_field(field, "linkpath", target, &mut pax);
        }
        // Extended attributes belong to the inode: the header of its first name has carried them.
        if linked.is_none() {
            for (name, value) in &inode.xattrs {
                // The prefix that star introduced, and that GNU tar and libarchive read.
                pax.add_record(&[b"SCHILY.xattr.", name.as_slice()].concat(), value);
            }
        }
        // The checksum covers all other fields, and so it is set after the last of them.
        header.set_cksum();
        let extension = pax.into_bytes();
        if !extension.is_empty() {
            self.write_bytes(pax_extension_header(path, extension.len() as u64).as_bytes())?;
            self.write_bytes(&extension)?;
            self.write_bytes(&vec![0; padding_len(extension.len() as u64)])?;
        }
        self.write_bytes(header.as_bytes())
    }
}

/// Zeros that fill the last block.
fn padding_len(len: u64) -> usize {
    usize::try_from((BLOCK - len % BLOCK) % BLOCK).unwrap_or_default()
}

fn tar_entry_type(kind: FileKind, linked: bool) -> EntryType {
    match kind {
        _ if linked => EntryType::Link,
        // No socket gets here: `write_entry` leaves them out.
        FileKind::File | FileKind::Socket => EntryType::Regular,
        FileKind::Dir => EntryType::Directory,
        FileKind::Symlink => EntryType::Symlink,
        FileKind::Fifo => EntryType::Fifo,
        FileKind::CharDevice => EntryType::Char,
        FileKind::BlockDevice => EntryType::Block,
    }
}

/// Owner, size, time and device number; what does not fit goes into PAX records, and the old field holds zero.
fn set_numeric_fields(header: &mut Header, pax: &mut PaxRecords, attr: &InodeAttr, size: u64) {
    for (name, id) in [("uid", attr.uid), ("gid", attr.gid)] {
        let fits = id <= ID_MAX;
        if !fits {
            pax.add_record(name.as_bytes(), id.to_string().as_bytes());
        }
        let old = if fits { u64::from(id) } else { 0 };
        if name == "uid" { header.set_uid(old) } else { header.set_gid(old) }
    }
    if size > SIZE_MAX {
        pax.add_record(b"size", size.to_string().as_bytes());
    }
    // The header's field cannot hold it: readers take the size from the record.
    header.set_size(if size > SIZE_MAX { 0 } else { size });
    let seconds = u64::try_from(attr.mtime.secs).ok().filter(|seconds| *seconds <= SIZE_MAX);
    // The old field has whole seconds since 1970 and no more.
    if attr.mtime.nanos != 0 || seconds.is_none() {
        pax.add_record(b"mtime", pax::format_pax_time(attr.mtime).as_bytes());
    }
    // What does not fit stands in the record, and readers take it from there.
    header.set_mtime(seconds.unwrap_or(0));
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        // The old header has fields for these, and a stream is an ustar one: neither call can fail.
        let _ = header.set_device_major(rustix::fs::major(attr.rdev));
        let _ = header.set_device_minor(rustix::fs::minor(attr.rdev));
    }
}

/// A name in the old field as far as it fits, whole in a PAX record if it does not or is not plain ASCII.
fn set_name_field(field: &mut [u8; NAME_MAX], key: &str, name: &[u8], pax: &mut PaxRecords) {
    // Also of a name that is too long: a reader that does not know PAX gets its beginning.
    for (place, byte) in field.iter_mut().zip(name) {
        *place = *byte;
    }
    if name.len() > field.len() || !name.is_ascii() {
        pax.add_name(key.as_bytes(), name);
    }
}

fn pax_extension_header(path: &[u8], size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XHeader);
    header.set_mode(0o644);
    header.set_size(size);
    if let Some(old) = header.as_ustar_mut() {
        let name = path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or(b"top");
        // A reader that does not know PAX extracts the records as a file of this name.
        let label = [b"PaxHeaders/", name].concat();
        for (place, byte) in old.name.iter_mut().zip(&label) {
            *place = *byte;
        }
    }
    header.set_cksum();
    header
}
