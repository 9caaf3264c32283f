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
    queue: Arc<StoredWriteQueue>,
}

/// What the thread that stores writes waits for.
#[derive(Default)]
struct StoredWriteQueue {
    state: Mutex<StoredWriteState>,
    changed: Condvar,
}

#[derive(Default)]
struct StoredWriteState {
    waiting: Vec<UploadedWrite>,
    /// Whether something was stored since the store was told that nothing is under way.
    has_stored: bool,
    /// How many requests that name what was stored are not answered.
    under_way: u64,
    /// When the last one was answered, or the last content stored.
    idle_since: Option<Instant>,
    /// None: the store is used.
    paused_until: Option<Instant>,
    has_ended: bool,
}

/// What that thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoredWriteStep {
    /// Stores writes.
    Store,
    /// Tells the store that nothing is under way.
    EndWrites,
    /// Ends.
    End,
    /// Waits until that moment for something else to do.
    WaitUntil(Instant),
    /// Waits until something changes.
    Wait,
}

impl StoredWriteState {
    fn next_step(&self, now: Instant) -> StoredWriteStep {
        if !self.waiting.is_empty() {
            return StoredWriteStep::Store;
        }
        match (self.has_stored, self.has_ended) {
            (true, true) => StoredWriteStep::EndWrites,
            (false, true) => StoredWriteStep::End,
            (false, false) => StoredWriteStep::Wait,
            // The server relies on the store keeping what was named until it has answered.
            (true, false) if self.under_way > 0 => StoredWriteStep::Wait,
            (true, false) => match self.idle_since.map(|since| since + IDLE).filter(|until| now < *until) {
                Some(until) => StoredWriteStep::WaitUntil(until),
                None => StoredWriteStep::EndWrites,
            },
        }
    }
}

/// While this exists, the store keeps what a request names.
pub(super) struct KeptContent(Arc<StoredWriteQueue>);

impl KeptContent {
    fn new(queue: &Arc<StoredWriteQueue>) -> Self {
        queue.state.lock().under_way += 1;
        Self(queue.clone())
    }
}

impl Drop for KeptContent {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.under_way = state.under_way.saturating_sub(1);
        state.idle_since = Some(Instant::now());
        let is_last = state.under_way == 0;
        drop(state);
        if is_last {
            self.0.changed.notify_one();
        }
    }
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
        Self { writes, queue: Arc::default() }
    }

    /// Whether a write of so many bytes is to be stored from here.
    pub fn takes_write(&self, len: usize) -> bool {
        if len < self.writes.min_len {
            return false;
        }
        let mut state = self.queue.state.lock();
        state.paused_until = state.paused_until.filter(|until| Instant::now() < *until);
        state.paused_until.is_none() && !state.has_ended
    }

    /// Adds a write, which is answered later.
    pub fn add_write(&self, request: &FuseRequest<'_>, reply: PendingAnswer) {
        let write = UploadedWrite { header: request.header, body: request.body().to_vec(), reply };
        let mut state = self.queue.state.lock();
        // Dropped after the end, it fails.
        if !state.has_ended {
            state.waiting.push(write);
            self.queue.changed.notify_one();
        }
    }

    /// Nothing is stored any more. Writes that wait fail.
    pub fn end(&self) {
        let mut state = self.queue.state.lock();
        state.has_ended = true;
        let waiting = std::mem::take(&mut state.waiting);
        self.queue.changed.notify_one();
        drop(state);
        // Without the lock: a kernel that has its answer may send the next request at once.
        drop(waiting);
    }

    /// Waits until there is something to do: [`StoredWriteStep::Store`], with the writes that are to be stored together, or an end.
    fn wait_for_step(&self) -> (StoredWriteStep, Vec<UploadedWrite>) {
        let mut state = self.queue.state.lock();
        loop {
            match state.next_step(Instant::now()) {
                StoredWriteStep::Store => return (StoredWriteStep::Store, state.take_writes()),
                step @ (StoredWriteStep::EndWrites | StoredWriteStep::End) => {
                    state.has_stored = false;
                    return (step, Vec::new());
                }
                StoredWriteStep::WaitUntil(until) => drop(self.queue.changed.wait_until(&mut state, until)),
                StoredWriteStep::Wait => self.queue.changed.wait(&mut state),
            }
        }
    }

    /// Stores what some writes write; None: that is not possible now.
    fn store_together(
        &self,
        writes: &[UploadedWrite],
        shared: &ClientShared,
    ) -> Option<Vec<Vec<StoredChunk>>> {
        let contents: Vec<&[u8]> = writes.iter().map(UploadedWrite::data).collect();
        match self.writes.store.store_writes(&contents) {
            Ok(chunks) if chunks.len() == writes.len() => {
                let mut state = self.queue.state.lock();
                (state.has_stored, state.idle_since) = (true, Some(Instant::now()));
                Some(chunks)
            }
            Ok(_) => None,
            Err(error) => {
                self.queue.state.lock().paused_until = Some(Instant::now() + PAUSE);
                (shared.options.report)(&format!(
                    "what programs write cannot be put into the store from here, and goes to the server: {}",
                    format_error_chain(&*error)
                ));
                None
            }
        }
    }

    fn end_stored_writes(&self) {
        if let Err(error) = self.writes.store.end_writes() {
            // The collector finds out that the process has ended, or waits for a day.
            tracing::debug!(error = %format_error_chain(&*error), "a session is left in the store");
        }
    }
}

impl StoredWriteState {
    /// The next writes to be stored together.
    fn take_writes(&mut self) -> Vec<UploadedWrite> {
        let mut bytes = 0;
        let is_taken = |write: &UploadedWrite| {
            bytes += write.body.len();
            bytes <= TOGETHER_MAX
        };
        // At least one, however long.
        let count = self.waiting.iter().map(is_taken).take_while(|is_taken| *is_taken).count().max(1);
        let count = count.min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }
}

/// Stores writes and has them carried out, until the client ends.
pub(super) fn run_uploads(shared: &ClientShared, uploads: &WriteUploads) {
    loop {
        let (step, writes) = uploads.wait_for_step();
        match step {
            StoredWriteStep::End => return,
            StoredWriteStep::EndWrites => uploads.end_stored_writes(),
            StoredWriteStep::Store | StoredWriteStep::WaitUntil(_) | StoredWriteStep::Wait => {}
        }
        if writes.is_empty() {
            continue;
        }
        let stored = uploads.store_together(&writes, shared);
        let mut chunks = stored.into_iter().flatten();
        for write in writes {
            let chunks =
                chunks.next().map(|chunks| NamedContent { chunks, kept: KeptContent::new(&uploads.queue) });
            forward_write(shared, write, chunks);
        }
    }
}

/// What a write writes, in the store.
struct NamedContent {
    chunks: Vec<StoredChunk>,
    kept: KeptContent,
}

/// Has a write carried out, with its chunks or with its bytes.
fn forward_write(shared: &ClientShared, write: UploadedWrite, content: Option<NamedContent>) {
    let named = content.and_then(|content| Some((write.name_chunks(&content.chunks)?, content.kept)));
    let UploadedWrite { header, body, reply } = write;
    let ended = match named {
        Some((named, kept)) => {
            let header = RequestHeader { opcode: Opcode::WriteStored.number(), ..header };
            let reply = OperationReply::StoredWrite { kernel: reply, body, _kept: kept };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_anything_stored_nothing_wakes_the_thread() {
        let now = Instant::now();
        let mut state = StoredWriteState::default();
        assert_eq!(state.next_step(now), StoredWriteStep::Wait);
        state.has_stored = true;
        state.idle_since = Some(now);
        assert_eq!(state.next_step(now), StoredWriteStep::WaitUntil(now + IDLE));
        assert_eq!(state.next_step(now + IDLE), StoredWriteStep::EndWrites);
        // However long the server takes.
        state.under_way = 1;
        assert_eq!(state.next_step(now + 100 * IDLE), StoredWriteStep::Wait);
        state.has_ended = true;
        assert_eq!(state.next_step(now), StoredWriteStep::EndWrites);
        state.has_stored = false;
        assert_eq!(state.next_step(now), StoredWriteStep::End);
    }

    #[test]
    fn what_was_named_last_counts_from_its_answer_on() {
        let queue = Arc::new(StoredWriteQueue::default());
        queue.state.lock().has_stored = true;
        let kept = [KeptContent::new(&queue), KeptContent::new(&queue)];
        assert_eq!(queue.state.lock().under_way, 2);
        let answered = Instant::now();
        drop(kept);
        let state = queue.state.lock();
        assert!(state.under_way == 0 && state.idle_since.is_some_and(|since| since >= answered));
    }
}
