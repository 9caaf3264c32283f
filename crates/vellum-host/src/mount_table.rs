//! The kernel's table of mounts: `/proc/self/mountinfo`.

#![expect(clippy::disallowed_methods, reason = "the kernel's table, and places that it names")]

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/self/mountinfo";

/// The device number of a filesystem, which all of its mounts share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesystemDevice {
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountTableEntry {
    /// The filesystem.
    pub device: FilesystemDevice,
    /// The root of the mount within its filesystem; `/` for the whole.
    pub root: PathBuf,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Filesystem type.
    pub kind: String,
    /// The source.
    pub source: String,
    /// Whether it is read-only.
    pub read_only: bool,
}

impl MountTableEntry {
    /// Whether it shows the whole filesystem.
    pub fn is_whole_filesystem(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether the process that served a FUSE mount is gone. `stat` cannot show that: the kernel may answer it from its
    /// cache.
    pub fn is_dead(&self) -> bool {
        let status = rustix::fs::statfs(&self.mountpoint);
        // The kernel answers `statfs` by asking the server; ENOTCONN means that there is none any more.
        matches!(status, Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
    }
}

/// All mounts, in the order of mounting.
pub fn read_mounts() -> io::Result<Vec<MountTableEntry>> {
    Ok(parse_mounts(&std::fs::read(TABLE)?))
}

/// All mounts that a process sees.
pub fn read_process_mounts(pid: u32) -> io::Result<Vec<MountTableEntry>> {
    Ok(parse_mounts(&std::fs::read(format!("/proc/{pid}/mountinfo"))?))
}

fn parse_mounts(text: &[u8]) -> Vec<MountTableEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_mount_line).collect()
}

/// Parses a line: number, parent, device, root, mount point, options, optional fields, `-`, type, source, more options.
fn parse_mount_line(line: &[u8]) -> Option<MountTableEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let device = FilesystemDevice { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let root = fields.next()?;
    let mountpoint = fields.next()?;
    let options = fields.next()?;
    // Between the options and `-` there are any number of optional fields.
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |bytes: &[u8]| String::from_utf8_lossy(&unescape_octal(bytes)).into_owned();
    Some(MountTableEntry {
        device,
        root: OsString::from_vec(unescape_octal(root)).into(),
        mountpoint: OsString::from_vec(unescape_octal(mountpoint)).into(),
        kind: text(rest.next()?),
        source: text(rest.next()?),
        read_only: options.split(|byte| *byte == b',').any(|option| option == b"ro"),
    })
}

/// Decodes a field: the kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape_octal(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let escaped =
            after.first_chunk::<3>().filter(|_| *first == b'\\').and_then(|digits| parse_octal_byte(*digits));
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

fn parse_octal_byte(digits: [u8; 3]) -> Option<u8> {
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
        let mount = parse_mount_line(line).unwrap();
        assert_eq!(
            (mount.device, mount.root.as_path()),
            (FilesystemDevice { major: 0, minor: 41 }, Path::new("/"))
        );
        assert_eq!(mount.mountpoint, Path::new("/mnt/a b\\"));
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("fuse.vellum", "vellum:w"));
        assert!(mount.read_only);
        assert_eq!(parse_mount_line(b""), None);
        assert_eq!(parse_mount_line(b"36 35 0:41 / /mnt rw -"), None);
    }
}
