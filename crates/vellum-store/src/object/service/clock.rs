//! How far this machine's clock is from that of a service.
//!
//! Invariant: it is that of the last answer with a time. Times in HTTP are whole seconds, and answers take a while.

use std::time::SystemTime;

use parking_lot::Mutex;

/// By how many seconds this machine's clock is ahead; negative if it is behind.
#[derive(Debug, Default)]
pub(super) struct ClockLead(Mutex<Option<i64>>);

impl ClockLead {
    /// Notes the time in an answer that has just come.
    pub fn note_service_clock(&self, service_clock: SystemTime) {
        *self.0.lock() = Some(measure_lead(service_clock));
    }

    /// What is known.
    pub fn read_lead(&self) -> Option<i64> {
        *self.0.lock()
    }
}

/// How many seconds this machine's clock is ahead of another; negative if it is behind.
pub(super) fn measure_lead(service_clock: SystemTime) -> i64 {
    let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    match SystemTime::now().duration_since(service_clock) {
        Ok(ahead) => seconds(ahead),
        Err(behind) => -seconds(behind.duration()),
    }
}
