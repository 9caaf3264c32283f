//! Recognises files that programs overwrite in place: databases and disk images.
//!
//! Invariant: the result is a guess. A wrong one costs deduplication and never correctness.

/// Number of bytes at a file's start that are examined: they include the magic number of ext4, which has the highest
/// offset.
pub const HEAD_LEN: usize = 2048;

/// Magic numbers and their offsets in the file.
const MAGICS: &[(usize, &[u8])] = &[
    // Databases.
    (0, b"SQLite format 3\0"),
    (0, b"redb\x1a\x0a\xa9\x0d\x0a"),
    (4, b"Standard Jet DB\0"),
    (4, b"Standard ACE DB\0"),
    // LMDB, the meta page's magic after the page header (64-bit); either byte order.
    (16, b"\xde\xc0\xef\xbe"),
    (16, b"\xbe\xef\xc0\xde"),
    // WiredTiger's block manager.
    (0, b"\x41\xd8\x01\x00\x01\x00"),
    // Berkeley DB: btree and hash, either byte order.
    (12, b"\x62\x31\x05\x00"),
    (12, b"\x00\x05\x31\x62"),
    (12, b"\x61\x15\x06\x00"),
    (12, b"\x00\x06\x15\x61"),
    // The system journal.
    (0, b"LPKSHHRH"),
    // Disk images of virtual machines.
    (0, b"QFI\xfb"),
    (0, b"KDMV"),
    (0, b"vhdxfile"),
    (0, b"conectix"),
    (64, b"\x7f\x10\xda\xbe"),
    // File systems and partition tables in image files.
    (0, b"LUKS\xba\xbe"),
    (0, b"XFSB"),
    (3, b"NTFS    "),
    (82, b"FAT32   "),
    (512, b"EFI PART"),
    (1080, b"\x53\xef"),
];

/// Whether a file that starts with `head` (its first [`HEAD_LEN`] bytes, or all of it) is of a format that programs
/// overwrite in place, so that fixed blocks suit it better than content-defined chunks.
#[must_use]
pub fn is_in_place_format(head: &[u8]) -> bool {
    // Nothing is parsed: a file that only begins like one of these is cut into blocks, which is harmless.
    let has =
        |&(offset, magic): &(usize, &[u8])| head.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    MAGICS.iter().any(has) || is_postgres_heap(head) || is_innodb(head)
}

// PostgreSQL pages have no magic number, but a header that little else looks like: page size 8192 and layout
// version 4, and three offsets in ascending order (storage/page/bufpage.h).
fn is_postgres_heap(head: &[u8]) -> bool {
    let word = |at: usize| head.get(at..at + 2).and_then(|two| two.try_into().ok()).map(u16::from_le_bytes);
    match (word(12), word(14), word(16), word(18)) {
        (Some(lower), Some(upper), Some(special), Some(0x2004)) => {
            24 <= lower && lower <= upper && upper <= special && special <= 8192
        }
        _ => false,
    }
}

// The first page of an InnoDB tablespace: page number 0, type 8, and the tablespace's number twice (fil0fil.h).
fn is_innodb(head: &[u8]) -> bool {
    let field = |at: usize, len: usize| head.get(at..at + len);
    field(4, 4) == Some(&[0; 4])
        && field(24, 2) == Some(&[0, 8])
        && field(34, 4).is_some_and(|space| field(38, 4) == Some(space))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut file = vec![b'.'; HEAD_LEN];
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        file
    }

    #[test]
    fn every_magic_number_is_reached_within_the_head() {
        for (offset, magic) in MAGICS {
            assert!(is_in_place_format(&file_with(*offset, magic)), "{magic:?}");
        }
    }

    #[test]
    fn pages_without_a_magic_number_are_recognised() {
        let postgres = [0x1c, 0, 0xe0, 0x1f, 0, 0x20, 4, 0x20];
        assert!(is_in_place_format(&file_with(12, &postgres)));
        let mut innodb = vec![0; 16 << 10];
        innodb[..4].copy_from_slice(b"csum");
        innodb[25] = 8;
        innodb[37] = 5;
        innodb[41] = 5;
        assert!(is_in_place_format(&innodb));
    }

    #[test]
    fn ordinary_files_are_not() {
        for head in [&b""[..], b"S", b"SQLite format 2\0", b"\x7fELF\x02\x01\x01", b"PK\x03\x04", &[0; 4096]]
        {
            assert!(!is_in_place_format(head), "{head:?}");
        }
        for len in 0..HEAD_LEN {
            assert!(!is_in_place_format(&vec![b'x'; len]));
        }
    }
}
