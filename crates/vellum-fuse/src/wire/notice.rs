//! Notifications to the kernel: what to drop from its caches.
//!
//! Invariant: a notification has the form of an answer to request 0, which does not exist.

use super::buffer::{HEAD_LEN, encode_answer_head};

/// What the kernel is to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalidation<'a> {
    /// The attributes of a node, and all its pages. Changed pages are written back first.
    Inode(u64),
    /// The attributes of a node, and its pages in a range. Changed pages are written back first.
    Pages {
        /// The node.
        node: u64,
        /// The offset of the first byte.
        offset: u64,
        /// Bytes; 0 extends to the end of the file.
        len: u64,
    },
    /// The attributes of a node alone.
    Attributes(u64),
    /// A name in a directory, and everything below it.
    Name {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// All names of the mount (since Linux 6.16).
    Names,
}

impl Invalidation<'_> {
    /// The number of the notification (`FUSE_NOTIFY_…`).
    fn notice_code(self) -> i32 {
        match self {
            Self::Inode(_) | Self::Pages { .. } | Self::Attributes(_) => 2,
            Self::Name { .. } => 3,
            Self::Names => 8,
        }
    }

    /// Encodes the notification.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_LEN];
        match self {
            Self::Inode(node) => return Self::Pages { node, offset: 0, len: 0 }.encode(),
            Self::Pages { node, offset, len } => {
                [node, offset, len].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
            }
            // The kernel drops no pages if the offset is negative.
            Self::Attributes(node) => return Self::Pages { node, offset: u64::MAX, len: 0 }.encode(),
            Self::Name { dir, name } => {
                let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
                let flags = 0u32;
                bytes.extend(dir.to_ne_bytes());
                bytes.extend(len.to_ne_bytes());
                bytes.extend(flags.to_ne_bytes());
                bytes.extend(name);
                // The kernel requires a NUL behind the name, which the length does not count.
                bytes.push(0);
            }
            Self::Names => {}
        }
        let head = encode_answer_head(bytes.len() - HEAD_LEN, self.notice_code(), 0);
        bytes[..HEAD_LEN].copy_from_slice(&head);
        bytes
    }
}
