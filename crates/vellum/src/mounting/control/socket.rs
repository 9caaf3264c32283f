//! Sockets at paths of any length: an address of the kernel's has 107 bytes, and worktrees lie deeper.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The most bytes of a path in a socket's address.
const ADDRESS_MAX: usize = 107;

/// Makes a socket at a path, which must be free, and listens on it.
pub fn listen_at(path: &Path) -> io::Result<UnixListener> {
    with_short_path(path, |short| UnixListener::bind(short))
}

/// Connects to the socket at a path.
pub fn connect_to(path: &Path) -> io::Result<UnixStream> {
    with_short_path(path, |short| UnixStream::connect(short))
}

/// Runs `operation` with a path to the same file that fits in an address.
fn with_short_path<T>(path: &Path, operation: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    // The usual case needs no descriptor, and no /proc.
    if path.as_os_str().len() <= ADDRESS_MAX {
        return operation(path);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return operation(path);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(parent, flags, Mode::empty())?;
    // The kernel resolves the name of the descriptor to the folder itself, wherever that lies.
    operation(&Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::{Read, Write};

    use super::*;

    fn exchange_bytes(path: &Path) {
        let listener = listen_at(path).unwrap();
        let mut caller = connect_to(path).unwrap();
        let mut called = listener.accept().unwrap().0;
        caller.write_all(b"request").unwrap();
        drop(caller);
        let mut received = Vec::new();
        called.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"request");
    }

    #[test]
    fn a_socket_works_at_a_path_of_any_length() {
        let root = tempfile::tempdir().unwrap();
        for depth in 0..4 {
            let folder = (0..depth).fold(root.path().to_path_buf(), |path, _| path.join("d".repeat(200)));
            std::fs::create_dir_all(&folder).unwrap();
            exchange_bytes(&folder.join("control"));
        }
    }

    #[test]
    fn addresses_at_the_limit_are_used_as_they_are_and_one_more_byte_works_too() {
        let root = tempfile::tempdir().unwrap();
        let used = root.path().join("x/control").as_os_str().len() - 1;
        for length in [ADDRESS_MAX, ADDRESS_MAX + 1] {
            let folder = root.path().join("d".repeat(length - used));
            std::fs::create_dir(&folder).unwrap();
            exchange_bytes(&folder.join("control"));
        }
    }

    #[test]
    fn a_missing_socket_is_reported_as_missing() {
        let root = tempfile::tempdir().unwrap();
        let far = root.path().join("d".repeat(200)).join("control");
        assert_eq!(connect_to(&far).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
