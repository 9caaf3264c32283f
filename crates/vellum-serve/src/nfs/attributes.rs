//! Attributes as RFC 1813 has them.

use vellum_library::{FileKind, Metadata};
use vellum_types::UnixTime;

use super::xdr::XdrWriter;

/// What of a tree is in the attributes of each inode.
#[derive(Debug, Clone, Copy)]
pub struct TreeNumber(pub u64);

/// Writes the attributes of an inode that takes `stored` bytes (`fattr3`, 84 bytes).
pub fn put_attributes(out: &mut XdrWriter, found: &Metadata, stored: u64, tree: TreeNumber) {
    let attr = found.attributes();
    for word in [kind_number(attr.kind), attr.mode, attr.nlink, attr.uid, attr.gid] {
        out.put_u32(word);
    }
    out.put_u64(attr.size);
    out.put_u64(stored);
    out.put_u32(rustix::fs::major(attr.rdev));
    out.put_u32(rustix::fs::minor(attr.rdev));
    out.put_u64(tree.0);
    out.put_u64(found.ino());
    for time in [attr.atime, attr.mtime, attr.ctime] {
        put_time(out, time);
    }
}

/// Writes a time: the nearest that 32 bits for seconds since 1970 can hold.
pub fn put_time(out: &mut XdrWriter, time: UnixTime) {
    let shown = shown_time(time);
    out.put_u32(u32::try_from(shown.secs).unwrap_or(0));
    out.put_u32(shown.nanos);
}

/// A time as clients see it.
pub fn shown_time(time: UnixTime) -> UnixTime {
    match u32::try_from(time.secs) {
        Ok(_) => time,
        Err(_) if time.secs < 0 => UnixTime { secs: 0, nanos: 0 },
        Err(_) => UnixTime { secs: i64::from(u32::MAX), nanos: 999_999_999 },
    }
}

fn kind_number(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => 1,
        FileKind::Dir => 2,
        FileKind::BlockDevice => 3,
        FileKind::CharDevice => 4,
        FileKind::Symlink => 5,
        FileKind::Socket => 6,
        FileKind::Fifo => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_do_not_fit_are_the_nearest() {
        for (secs, expected) in
            [(-1, 0), (0, 0), (4_294_967_295, 4_294_967_295), (4_294_967_296, 4_294_967_295)]
        {
            assert_eq!(shown_time(UnixTime { secs, nanos: 0 }).secs, expected);
        }
    }
}
