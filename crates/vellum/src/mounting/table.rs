//! What is mounted, as the kernel says: `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use vellum_fuse::MountFile;

use crate::error::{CliError, Result};

const TABLE: &str = "/proc/self/mountinfo";

/// What the kernel calls mounts of volumes.
const KIND: &str = "fuse.vellum";

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub mountpoint: PathBuf,
    /// Kind of filesystem.
    pub kind: String,
    /// What is mounted.
    pub source: String,
    /// Whether it is read-only.
    pub read_only: bool,
}

impl Mount {
    /// Whether it is a volume's.
    pub fn is_ours(&self) -> bool {
        self.kind == KIND
    }

    /// What the mount says of itself. An error if its process is gone.
    pub fn describe(&self) -> std::io::Result<MountFile> {
        let text = std::fs::read(self.mountpoint.join(".vellum/mount.json"))?;
        serde_json::from_slice(&text).map_err(std::io::Error::other)
    }

    /// Whether the process that served it is gone. Not by `stat`: the kernel may answer that by itself.
    pub fn is_dead(&self) -> bool {
        let asked = rustix::fs::statfs(&self.mountpoint);
        matches!(asked, Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
    }
}

/// All mounts, in the order in which they were made.
pub fn all() -> Result<Vec<Mount>> {
    let text = std::fs::read(TABLE).map_err(CliError::io("read", TABLE))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// What is seen at a path: the last that was mounted there.
pub fn at(mountpoint: &Path) -> Result<Option<Mount>> {
    Ok(all()?.into_iter().rev().find(|mount| mount.mountpoint == mountpoint))
}

/// A line: number, parent, device, root, mountpoint, options, optional fields, `-`, kind, source, more options.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mountpoint = fields.nth(4)?;
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |bytes: &[u8]| String::from_utf8_lossy(&unescape(bytes)).into_owned();
    Some(Mount {
        mountpoint: OsString::from_vec(unescape(mountpoint)).into(),
        kind: text(rest.next()?),
        source: text(rest.next()?),
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
    })
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.first_chunk::<3>().filter(|_| *first == b'\\').and_then(|digits| octal(*digits));
        match escaped {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

fn octal(digits: [u8; 3]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_line_of_the_table_is_understood() {
        let line =
            b"36 35 0:41 / /mnt/a\\040b\\134 ro,nosuid shared:1 master:2 - fuse.vellum vellum:w rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!(mount.mountpoint, Path::new("/mnt/a b\\"));
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), (KIND, "vellum:w"));
        assert!(mount.read_only && mount.is_ours());
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:41 / /mnt rw -"), None);
    }
}
