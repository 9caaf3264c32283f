//! Limits of the formats, each with its unit and the reason for the number.

/// Longest file name, bytes: what Linux filesystems hold.
pub const NAME_MAX: usize = 255;
/// Longest symlink target, bytes: `PATH_MAX` of Linux.
pub const SYMLINK_MAX: usize = 4096;
/// Longest extended attribute value, bytes: `XATTR_SIZE_MAX` of Linux.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Longest map key, bytes: inode number, tag and the longest suffix (a name).
pub const KEY_MAX: usize = 8 + 1 + NAME_MAX;
/// Longest map value, bytes: an extended attribute of the greatest size, with room for framing.
pub const VALUE_MAX: usize = XATTR_VALUE_MAX + 4096;
/// Largest file, bytes: what `off_t` can hold.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Largest blob before compression, bytes: 16 chunks of the greatest size. Caps what a decoder allocates.
pub const BLOB_MAX: usize = 4 << 20;
/// Longest extent of a file, bytes: as long as the longest chunk, so that what covers an offset is found by looking back no
/// further than this.
pub const EXTENT_MAX: u64 = BLOB_MAX as u64;
/// Content up to this many bytes lives in the map beside the attributes: no chunk, no extra fetch.
pub const INLINE_MAX: usize = 4096;
/// Longest snapshot note, bytes: a page of prose.
pub const NOTE_MAX: usize = 64 << 10;
/// Longest tag or worktree name, bytes: what a file name can hold.
pub const REF_NAME_MAX: usize = 255;
