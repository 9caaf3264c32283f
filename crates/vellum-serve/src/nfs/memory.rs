//! Memory for messages that arrive and answers that leave: so much for all connections together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes for all messages and answers.
const MEMORY: usize = 64 << 20;
/// Bytes of a message or an answer that are not counted, so that short ones go on whatever others hold: with all connections and
/// all that each may have under way, as much again.
pub const UNCOUNTED: usize = 4 << 10;
/// Bytes of a unit in which it is given out.
const UNIT: usize = 1 << 10;

/// The memory that is left.
#[derive(Clone)]
pub struct MessageMemory(Arc<Semaphore>);

/// A part of it, given back when it is dropped.
pub type MemoryPart = OwnedSemaphorePermit;

impl MessageMemory {
    /// All of it.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(MEMORY / UNIT)))
    }

    /// Waits for so many bytes. None: others did not give back enough in this time.
    pub async fn reserve(&self, bytes: usize, wait: Duration) -> Option<MemoryPart> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        tokio::time::timeout(wait, self.0.clone().acquire_many_owned(units)).await.ok()?.ok()
    }
}
