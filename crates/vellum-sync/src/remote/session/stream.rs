//! Streams that count their bytes, with a timeout for reading.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The receiving half of a connection.
pub(super) struct TimedReader {
    file: File,
    /// The timeout in milliseconds; 0: none. A change takes effect at the next read.
    timeout: Arc<AtomicU64>,
    count: Arc<AtomicU64>,
}

impl TimedReader {
    pub fn new(fd: OwnedFd, timeout: Arc<AtomicU64>, count: Arc<AtomicU64>) -> Self {
        Self { file: fd.into(), timeout, count }
    }

    fn wait_readable(&self) -> io::Result<()> {
        let millis = self.timeout.load(Ordering::Relaxed);
        // Without a time-out, the read itself waits, and the end of the process on the other side ends it.
        if millis == 0 {
            return Ok(());
        }
        let limit = Timespec::try_from(Duration::from_millis(millis)).ok();
        loop {
            // The stream is a pipe to ssh or standard input. A time-out for reads exists for sockets only
            // (SO_RCVTIMEO), so the wait is a poll.
            let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut polled, limit.as_ref()) {
                Ok(0) => {
                    let message = format!("nothing was received for {} s", millis.div_ceil(1000));
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Read for TimedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The time-out is read again for each wait: the server learns it from the first message.
        self.wait_readable()?;
        let count = self.file.read(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The sending half.
pub(super) struct CountedWriter {
    file: File,
    count: Arc<AtomicU64>,
}

impl CountedWriter {
    pub fn new(fd: OwnedFd, count: Arc<AtomicU64>) -> Self {
        Self { file: fd.into(), count }
    }
}

impl Write for CountedWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.file.write(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
