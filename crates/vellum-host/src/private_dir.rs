//! Directories that nobody but their owner can look into.
//!
//! Invariant: they are private from the first moment, because others may watch for what appears.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Permissions of the directories: for their owner only, whatever the umask.
const MODE: u32 = 0o700;

/// Creates a private directory and its missing parents, which are private, too. It is no error if it exists; its
/// permissions stay then.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    #[expect(
        clippy::disallowed_methods,
        reason = "Vellum's own directories: not in a tree that others may change"
    )]
    DirBuilder::new().recursive(true).mode(MODE).create(path)
}
