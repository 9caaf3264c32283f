//! Which log an opened log expects, for engines that tell what they have with each answer.

use parking_lot::Mutex;

use crate::error::SharedLogError;
use crate::log::LogIncarnation;

/// The log that is expected; see [`crate::SharedLog`].
#[derive(Default)]
pub(crate) struct LogBinding {
    expected: Mutex<Option<LogIncarnation>>,
}

impl LogBinding {
    /// Expects a log from now on.
    pub fn expect(&self, incarnation: LogIncarnation) {
        *self.expected.lock() = Some(incarnation);
    }

    /// The log that is expected, if one is.
    pub fn expected(&self) -> Option<LogIncarnation> {
        *self.expected.lock()
    }

    /// Fails if the engine has another log than is expected, or none. Expects the one that it has if none was expected.
    pub fn check(&self, engine: &str, found: Option<LogIncarnation>) -> Result<(), SharedLogError> {
        let mut expected = self.expected.lock();
        match (*expected, found) {
            (None, None) => Err(SharedLogError::NoLog { engine: engine.to_owned() }),
            // Whoever only looks expects none, and must not see two logs as one when it is replaced meanwhile.
            (None, Some(found)) => {
                *expected = Some(found);
                Ok(())
            }
            (Some(expected), Some(found)) if expected == found => Ok(()),
            (Some(expected), found) => Err(SharedLogError::Lost { expected, found }),
        }
    }
}
