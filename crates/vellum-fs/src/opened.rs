//! Open files: how often each inode is open, so that one without a name goes at the last close.

/// The table of open inodes.
#[derive(Debug, Default)]
pub struct Opened {}
