//! Files that nobody but this user may read or replace: what is in them opens a window.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// What keeps a symlink at the end of a path from being followed: it may be somebody else's.
pub(crate) const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Opens one; a symlink is not followed.
pub(crate) fn open_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(path)
}

/// Why a private file could not be opened.
pub(crate) fn describe_open_error(error: &io::Error) -> String {
    if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        return "it is a symlink".into();
    }
    error.to_string()
}

/// Returns its text, of at most this many bytes. Fails with the reason if others could read or replace it.
pub(crate) fn read_private_file(file: File, max: u64) -> Result<String, String> {
    // Of the open file: what is at the path may be exchanged between a look and the opening.
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is no file".into());
    }
    // Whoever owns the file knows what is in it, or can set it.
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user".into());
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!("others may read it: its mode is {:04o}, not 0600", meta.mode() & 0o7777));
    }
    let mut text = String::new();
    // One byte more than there may be, so that a longer file is noticed.
    file.take(max + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > max {
        return Err(format!("it is longer than {max} bytes"));
    }
    Ok(text)
}
