//! Files that gateways receive: without a name until all of it has arrived, and then, in one step, in the place of what has the
//! name.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use vellum_library::{File, FileKind, Result, Tree as _, Worktree};

/// Permissions of a file that replaces none.
pub const MODE: u32 = 0o644;
/// How a file is called for the moment between two steps, in the root of the tree: this, and 32 hexadecimal digits.
pub const UPLOAD_NAME: &str = ".vellum-upload-";
/// The digits.
const WORD_LEN: usize = 32;

/// Writes all of `data`. Returns false if no file can be so large.
pub fn write_fully(file: &File, data: &[u8], offset: u64) -> Result<bool> {
    let mut position = offset;
    let mut left = data;
    while !left.is_empty() {
        let count = file.write_at(left, position)?;
        // At the largest size that a file can have.
        if count == 0 {
            return Ok(false);
        }
        position += count as u64;
        left = left.get(count..).unwrap_or_default();
    }
    Ok(true)
}

/// Gives a file without a name its name, in the place of what has it.
pub fn replace_file(worktree: &Worktree, path: &Path, file: &File) -> Result<()> {
    match file.persist(worktree.root(), path) {
        Err(error) if has_errno(&error, Errno::EXIST) => {}
        done => return done,
    }
    // No name is given to a file in the place of another one in one step. If the process is killed between these two, the
    // next gateway removes the first name.
    let beside = PathBuf::from(format!("{UPLOAD_NAME}{}", random_word()));
    file.persist(worktree.root(), &beside)?;
    let renamed = worktree.rename(&beside, path);
    if renamed.is_err() {
        // The first error is the one to report.
        let _ = worktree.remove(&beside);
    }
    renamed
}

/// Removes what a gateway that was killed between two steps has left.
pub fn remove_leftovers(worktree: &Worktree) -> Result<()> {
    for entry in worktree.read_dir("")? {
        if entry.kind == FileKind::File && entry.name.to_str().is_some_and(is_upload_name) {
            worktree.remove(&entry.name)?;
        }
    }
    Ok(())
}

/// Whether a gateway gave a file this name. Others that only begin so are somebody's.
fn is_upload_name(name: &str) -> bool {
    let word = name.strip_prefix(UPLOAD_NAME);
    word.is_some_and(|word| word.len() == WORD_LEN && word.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Whether an operation failed with this error number.
pub fn has_errno(error: &vellum_library::Error, errno: Errno) -> bool {
    error.errno() == Some(errno.raw_os_error())
}

/// 32 hexadecimal digits that nothing else has.
pub fn random_word() -> String {
    let mut bytes = [0; WORD_LEN / 2];
    // Without randomness the name may be taken, which is an error of the upload.
    let _ = getrandom::fill(&mut bytes);
    let mut word = String::with_capacity(WORD_LEN);
    for byte in bytes {
        // Writing into a string does not fail.
        let _ = write!(word, "{byte:02x}");
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_gateways_are_removed() {
        assert!(is_upload_name(&format!("{UPLOAD_NAME}{}", random_word())));
        for name in
            [".vellum-upload-0", ".vellum-upload-", "notes", &format!("{UPLOAD_NAME}{}x", random_word())]
        {
            assert!(!is_upload_name(name), "{name}");
        }
    }
}
