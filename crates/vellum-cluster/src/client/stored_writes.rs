//! Writes whose bytes are put into the store from here, and not sent: the server is told where they are.
//!
//! Large writes wait here until their bytes are in the store; all that wait at the same time are stored together. Then each is a
//! request like any other, which names chunks in place of bytes: its order, its retries and its answer are those of a write.
//!
//! Invariants: what is stored cannot be collected before the server has answered; a write whose bytes cannot be stored, or not be
//! found by the server, is sent with its bytes. Deliberately absent: how contents are stored.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use vellum_fs::{ChunkUploader, StoredChunk};
use vellum_fuse::transport::PendingAnswer;
use vellum_fuse::wire::{
    FuseAnswer, FuseRequest, Opcode, RequestHeader, WRITE_CHUNKS_MAX, WRITE_HEAD_LEN, encode_stored_write,
};
use vellum_host::error_chain::format_error_chain;

use super::ClientShared;
use super::queue::{EndedOperation, OperationReply};

/// Bytes that are stored together at most: those of one pack. More wait for the next time.
const TOGETHER_MAX: usize = 16 << 20;
/// After so long without a write, the store is told that nothing is under way: until then, nothing is collected there.
const IDLE: Duration = Duration::from_secs(5);
/// For so long after a failure, nothing is put into the store: a program must not wait for a store that is away, once for each
/// write.
const PAUSE: Duration = Duration::from_secs(30);

/// What keeps the bytes of writes.
pub trait WriteStore: Send + Sync + 'static {
    /// Stores contents durably, where the server finds them, and gives the chunks of each in their order. Until
    /// [`Self::end_writes`], nobody deletes them.
    fn store_writes(&self, contents: &[&[u8]])
    -> Result<Vec<Vec<StoredChunk>>, Box<dyn Error + Send + Sync>>;

    /// The server has all that was stored, or does not need it.
    fn end_writes(&self) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl WriteStore for ChunkUploader {
    fn store_writes(
        &self,
        contents: &[&[u8]],
    ) -> Result<Vec<Vec<StoredChunk>>, Box<dyn Error + Send + Sync>> {
        Ok(self.store_contents(contents)?)
    }

    fn end_writes(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.end_session()?)
    }
}

/// Which writes are stored from here.
pub struct StoredWrites {
    /// Where.
    pub store: Box<dyn WriteStore>,
    /// Those of so many bytes at least.
    pub min_len: usize,
}

/// The writes that wait until they are stored.
pub(super) struct WriteUploads {
    writes: StoredWrites,
    state: Mutex<UploadState>,
    changed: Condvar,
}

#[derive(Default)]
struct UploadState {
    waiting: Vec<UploadedWrite>,
    /// None: the store is used.
    paused_until: Option<Instant>,
    has_ended: bool,
}

/// A write.
struct UploadedWrite {
    header: RequestHeader,
    body: Vec<u8>,
    reply: PendingAnswer,
}

impl UploadedWrite {
    fn data(&self) -> &[u8] {
        self.body.get(WRITE_HEAD_LEN..).unwrap_or_default()
    }

    /// The request that names chunks; None: they are too many for one.
    fn name_chunks(&self, chunks: &[StoredChunk]) -> Option<Vec<u8>> {
        let head = self.body.get(..WRITE_HEAD_LEN)?;
        (!chunks.is_empty() && chunks.len() <= WRITE_CHUNKS_MAX).then(|| encode_stored_write(head, chunks))
    }
}

impl WriteUploads {
    pub fn new(writes: StoredWrites) -> Self {
        Self { writes, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether a write of so many bytes is to be stored from here.
    pub fn takes_write(&self, len: usize) -> bool {
        if len < self.writes.min_len {
            return false;
        }
        let mut state = self.state.lock();
        state.paused_until = state.paused_until.filter(|until| Instant::now() < *until);
        state.paused_until.is_none() && !state.has_ended
    }

    /// Adds a write, which is answered later.
    pub fn add_write(&self, request: &FuseRequest<'_>, reply: PendingAnswer) {
        let write = UploadedWrite { header: request.header, body: request.body().to_vec(), reply };
        let mut state = self.state.lock();
        // Dropped after the end, it fails.
        if !state.has_ended {
            state.waiting.push(write);
            self.changed.notify_one();
        }
    }

    /// Nothing is stored any more. Writes that wait fail.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        let waiting = std::mem::take(&mut state.waiting);
        self.changed.notify_one();
        drop(state);
        // Without the lock: a kernel that has its answer may send the next request at once.
        drop(waiting);
    }

    /// The next writes to be stored together; none: there were none for so long, or this has ended.
    fn take_writes(&self) -> Vec<UploadedWrite> {
        let until = Instant::now() + IDLE;
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.has_ended {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return Vec::new();
            }
        }
        let mut bytes = 0;
        let is_taken = |write: &UploadedWrite| {
            bytes += write.body.len();
            bytes <= TOGETHER_MAX
        };
        // At least one, however long.
        let count = state.waiting.iter().map(is_taken).take_while(|is_taken| *is_taken).count().max(1);
        let count = count.min(state.waiting.len());
        state.waiting.drain(..count).collect()
    }

    /// Stores what some writes write; None: that is not possible now.
    fn store_together(
        &self,
        writes: &[UploadedWrite],
        shared: &ClientShared,
    ) -> Option<Vec<Vec<StoredChunk>>> {
        let contents: Vec<&[u8]> = writes.iter().map(UploadedWrite::data).collect();
        match self.writes.store.store_writes(&contents) {
            Ok(chunks) if chunks.len() == writes.len() => Some(chunks),
            Ok(_) => None,
            Err(error) => {
                self.state.lock().paused_until = Some(Instant::now() + PAUSE);
                (shared.options.report)(&format!(
                    "what programs write cannot be put into the store from here, and goes to the server: {}",
                    format_error_chain(&*error)
                ));
                None
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }
}

/// Stores writes and has them carried out, until the client ends.
pub(super) fn run_uploads(shared: &ClientShared, uploads: &WriteUploads) {
    // Each request that names what was stored has a clone of it.
    let under_way = Arc::new(());
    let mut has_stored = false;
    loop {
        let writes = uploads.take_writes();
        if writes.is_empty() {
            // Not before all are answered: the server relies on the store keeping them for it until then.
            let is_over = uploads.has_ended() || Arc::strong_count(&under_way) == 1;
            if has_stored && is_over {
                has_stored = false;
                if let Err(error) = uploads.writes.store.end_writes() {
                    // The collector finds out that the process has ended, or waits for a day.
                    tracing::debug!(error = %format_error_chain(&*error), "a session is left in the store");
                }
            }
            if uploads.has_ended() {
                return;
            }
            continue;
        }
        let stored = uploads.store_together(&writes, shared);
        has_stored |= stored.is_some();
        let mut chunks = stored.into_iter().flatten();
        for write in writes {
            let chunks = chunks.next().map(|chunks| NamedContent { chunks, under_way: under_way.clone() });
            forward_write(shared, write, chunks);
        }
    }
}

/// What a write writes, in the store.
struct NamedContent {
    chunks: Vec<StoredChunk>,
    under_way: Arc<()>,
}

/// Has a write carried out, with its chunks or with its bytes.
fn forward_write(shared: &ClientShared, write: UploadedWrite, content: Option<NamedContent>) {
    let named = content.and_then(|content| Some((write.name_chunks(&content.chunks)?, content.under_way)));
    let UploadedWrite { header, body, reply } = write;
    let ended = match named {
        Some((named, under_way)) => {
            let header = RequestHeader { opcode: Opcode::WriteStored.number(), ..header };
            let reply = OperationReply::StoredWrite { kernel: reply, body, _under_way: under_way };
            shared.forward_change(&FuseRequest::from_parts(header, &named), reply)
        }
        None => shared.forward_change(&FuseRequest::from_parts(header, &body), OperationReply::Kernel(reply)),
    };
    if let Some(ended) = ended {
        ended.send_answer();
    }
}

/// Whether a server says by this that it does not find what was stored, or knows no such writes.
pub(super) fn asks_for_bytes(errno: i32) -> bool {
    [Errno::NODATA, Errno::NOSYS].map(Errno::raw_os_error).contains(&errno)
}

impl EndedOperation {
    /// One that fails before it is sent.
    pub(super) fn failed(reply: OperationReply) -> Self {
        Self { reply, answer: FuseAnswer::Failed(Errno::IO) }
    }
}
