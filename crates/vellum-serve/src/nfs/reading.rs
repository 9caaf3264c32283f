//! What changes nothing: attributes, names, content, and what there is to know of the whole tree.

use vellum_types::limits::{FILE_SIZE_MAX, NAME_MAX};

use super::protocol::{NfsStatus, TRANSFER_MAX, access};
use super::request::NamedPlace;
use super::tree::{Answered, NfsTree};
use super::xdr::XdrWriter;

/// Bytes of which transfers are best a multiple.
const TRANSFER_MULTIPLE: u32 = 4096;
/// Bytes of a listing that are best asked for at once.
const LISTING_BYTES: u32 = 256 << 10;
/// Most names of a file, as far as anybody asks.
const LINKS_MAX: u32 = i32::MAX.cast_unsigned();
/// There are hard links and symlinks, everything has the same limits, and times can be set.
const PROPERTIES: u32 = 1 | 2 | 8 | 16;
/// Mode bits of which one has to be set for a file to be executed.
const EXECUTABLE: u32 = 0o111;

impl NfsTree {
    pub(super) fn answer_attributes(&self, object: &[u8], out: &mut XdrWriter) -> Answered {
        self.put_plain(out, &self.hold(object)?);
        Ok(Vec::new())
    }

    pub(super) fn look_up(&self, place: NamedPlace<'_>, out: &mut XdrWriter) -> Answered {
        let dir = self.hold_dir(place.dir)?;
        let found = self.inodes.lookup(dir.ino(), place.name)?;
        out.put_opaque(&self.handle_of(&found));
        self.put_known(out, &found);
        self.put_known(out, &dir);
        Ok(Vec::new())
    }

    /// Whoever comes in may do everything that the tree allows.
    pub(super) fn answer_access(&self, object: &[u8], wanted: u32, out: &mut XdrWriter) -> Answered {
        let found = self.hold(object)?;
        let mut allowed = access::READ;
        if found.is_dir() {
            allowed |= access::LOOKUP;
        } else if found.mode() & EXECUTABLE != 0 {
            allowed |= access::EXECUTE;
        }
        if self.can_write() {
            allowed |= access::MODIFY | access::EXTEND;
            if found.is_dir() {
                allowed |= access::DELETE;
            }
        }
        self.put_known(out, &found);
        out.put_u32(wanted & allowed);
        Ok(Vec::new())
    }

    pub(super) fn read_link(&self, object: &[u8], out: &mut XdrWriter) -> Answered {
        let found = self.hold(object)?;
        let target = self.inodes.read_link(found.ino())?;
        self.put_known(out, &found);
        out.put_opaque(&target);
        Ok(Vec::new())
    }

    pub(super) fn read(&self, file: &[u8], offset: u64, count: u32, out: &mut XdrWriter) -> Answered {
        let found = self.hold(file)?;
        let wanted = count.min(TRANSFER_MAX) as usize;
        let data = self.inodes.read(found.ino(), offset, wanted)?;
        let len = u32::try_from(data.len()).map_err(|_| NfsStatus::ServerFault)?;
        let is_end = data.len() < wanted || offset.saturating_add(u64::from(len)) >= found.size();
        self.put_known(out, &found);
        out.put_u32(len);
        out.put_bool(is_end);
        // The length again: the content is a value of its own.
        out.put_u32(len);
        Ok(data)
    }

    pub(super) fn answer_space(&self, object: &[u8], out: &mut XdrWriter) -> Answered {
        let found = self.hold(object)?;
        self.put_known(out, &found);
        match self.inodes.statistics()? {
            Some(room) => {
                for blocks in [room.blocks, room.blocks_free, room.blocks_available] {
                    out.put_u64(blocks.saturating_mul(u64::from(room.block_size)));
                }
                for files in [room.files, room.files_free, room.files_free] {
                    out.put_u64(files);
                }
            }
            // A snapshot is full.
            None => [self.content_bytes, 0, 0, 0, 0, 0].into_iter().for_each(|number| out.put_u64(number)),
        }
        // How long this will hold: nobody knows.
        out.put_u32(0);
        Ok(Vec::new())
    }

    pub(super) fn answer_limits(&self, object: &[u8], out: &mut XdrWriter) -> Answered {
        let found = self.hold(object)?;
        self.put_known(out, &found);
        for _ in ["reading", "writing"] {
            out.put_u32(TRANSFER_MAX);
            out.put_u32(TRANSFER_MAX);
            out.put_u32(TRANSFER_MULTIPLE);
        }
        out.put_u32(LISTING_BYTES);
        out.put_u64(FILE_SIZE_MAX);
        // Times are kept to the nanosecond.
        out.put_u32(0);
        out.put_u32(1);
        out.put_u32(PROPERTIES);
        Ok(Vec::new())
    }

    pub(super) fn answer_names(&self, object: &[u8], out: &mut XdrWriter) -> Answered {
        let found = self.hold(object)?;
        self.put_known(out, &found);
        out.put_u32(LINKS_MAX);
        out.put_u32(NAME_MAX as u32);
        // Longer names are refused, owners can be changed; upper case and lower case differ, and stay.
        for value in [true, false, false, true] {
            out.put_bool(value);
        }
        Ok(Vec::new())
    }
}
