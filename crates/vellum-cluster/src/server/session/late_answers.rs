//! Answers that depend on what has become of the session, or of the worktree, until they are there.

use std::sync::Arc;

use vellum_fs::OperationMark;
use vellum_fuse::transport::AnswerSink;
use vellum_fuse::wire::{FuseAnswer, Opcode};

use super::ClientSession;
use crate::protocol::frame::encode_answer;

/// Whether a request sets a lock, or unlocks.
pub(super) fn is_lock_request(opcode: u32) -> bool {
    matches!(Opcode::from_number(opcode), Some(Opcode::Setlk | Opcode::Setlkw))
}

/// The answer to a request for a lock.
pub(super) struct LockAnswer {
    pub session: Arc<ClientSession>,
    /// How often the session had ended when the request came.
    pub endings: u64,
}

impl AnswerSink for LockAnswer {
    fn accept_answer(&self, unique: u64, answer: FuseAnswer) {
        let Some(frame) = encode_answer(unique, &answer).map(Arc::new) else { return };
        // Taken once for the look and for the answer: in between, the lock that was granted could be freed.
        let state = self.session.state.lock();
        if state.endings == self.endings {
            self.session.end_operation(state, unique, frame);
        }
    }
}

/// The answer to a request that is marked after it was carried out.
pub(super) struct MarkedAnswer {
    pub session: Arc<ClientSession>,
    pub mark: OperationMark,
}

impl AnswerSink for MarkedAnswer {
    fn accept_answer(&self, unique: u64, answer: FuseAnswer) {
        if !matches!(answer, FuseAnswer::Failed(_))
            && let Err(error) = self.session.services.put_mark(&self.mark)
        {
            // Its client then takes it for lost if this process ends, and the next `fsync` fails for nothing.
            tracing::debug!(%error, "a request cannot be marked");
        }
        // Behind the mark: from the answer on, its client expects to find it.
        self.session.accept_answer(unique, answer);
    }
}
