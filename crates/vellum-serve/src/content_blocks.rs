//! The content of a file as an answer has it: while a block is sent, the next one is read.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};
use vellum_library::File;

/// Bytes of a block. Two of each answer are in memory, one that is sent and one that is read.
pub const BLOCK: usize = 256 << 10;

/// Reads a part of a file, block by block.
pub struct ContentBlocks {
    file: Arc<File>,
    at: u64,
    left: u64,
    /// The next block, which a thread reads that may wait. Nobody waits for it if the client goes away.
    ahead: Option<JoinHandle<vellum_library::Result<Vec<u8>>>>,
}

impl ContentBlocks {
    /// So many bytes from `start` on. Nothing is read yet.
    #[must_use]
    pub fn new(file: Arc<File>, start: u64, len: u64) -> Self {
        Self { file, at: start, left: len, ahead: None }
    }

    /// The next block; None: all were read. Fails at the end of a file that has become shorter than the part.
    pub async fn next_block(&mut self) -> io::Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let reading = self.ahead.take().unwrap_or_else(|| self.begin_reading());
        let block = reading.await.map_err(io::Error::other)??;
        // Shorter than when its length was sent: the answer must not look whole.
        if block.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += block.len() as u64;
        self.left = self.left.saturating_sub(block.len() as u64);
        // A short block is the last one of the file.
        if self.left > 0 && block.len() == BLOCK {
            self.ahead = Some(self.begin_reading());
        }
        Ok(Some(block.into()))
    }

    fn begin_reading(&self) -> JoinHandle<vellum_library::Result<Vec<u8>>> {
        let file = self.file.clone();
        let at = self.at;
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(BLOCK);
        spawn_blocking(move || file.read_bytes_at(at, len))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use tokio::runtime::Builder;
    use vellum_library::{Tree as _, Volume};

    use super::*;

    #[test]
    fn a_part_is_read_in_blocks_whatever_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::create(dir.path()).unwrap().volume;
        let work = volume.create_worktree("work", None).unwrap();
        let content: Vec<u8> = (0..=250).cycle().take(2 * BLOCK + 1000).collect();
        work.write("file", &content).unwrap();
        let file = Arc::new(work.open("file").unwrap());
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let read = |start: usize, len: usize| {
            runtime.block_on(async {
                let mut blocks = ContentBlocks::new(file.clone(), start as u64, len as u64);
                let mut read = Vec::new();
                while let Some(block) = blocks.next_block().await? {
                    assert!(block.len() <= BLOCK);
                    read.extend_from_slice(&block);
                }
                Ok::<_, io::Error>(read)
            })
        };
        for (start, len) in [(0, content.len()), (0, 0), (0, 1), (5, BLOCK), (BLOCK, BLOCK), (7, 2 * BLOCK)] {
            assert_eq!(read(start, len).unwrap(), content[start..start + len], "{start} {len}");
        }
        // The file has become shorter than what the head of the answer said.
        let error = read(0, content.len() + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
