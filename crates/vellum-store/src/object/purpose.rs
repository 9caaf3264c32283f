//! What requests to a store are made for.
//!
//! Invariant: a purpose belongs to a thread, since calls block; whoever hands requests to other threads hands on the
//! purpose, too. It decides the order of requests and what they are counted as, never what is answered.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// What a request is made for. Those that somebody waits for come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestPurpose {
    /// A program or a user waits for the answer.
    #[default]
    Foreground,
    /// Content that will probably be read soon.
    ReadAhead,
    /// What a mount publishes in the background.
    Upload,
    /// Collecting, verifying, renewing leases, looking for what others did.
    Upkeep,
}

thread_local! {
    static PURPOSE: Cell<Option<RequestPurpose>> = const { Cell::new(None) };
}

/// The purpose of threads that have none of their own, if the command chose one.
static PROCESS_PURPOSE: OnceLock<RequestPurpose> = OnceLock::new();

/// Until it is dropped, requests of this thread have a purpose.
#[must_use]
pub struct PurposeScope {
    before: Option<RequestPurpose>,
    /// The scope ends on the thread on which it began.
    bound: PhantomData<*const ()>,
}

/// One value for each purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerPurpose<T> {
    /// Of [`RequestPurpose::Foreground`].
    pub foreground: T,
    /// Of [`RequestPurpose::ReadAhead`].
    pub read_ahead: T,
    /// Of [`RequestPurpose::Upload`].
    pub upload: T,
    /// Of [`RequestPurpose::Upkeep`].
    pub upkeep: T,
}

impl RequestPurpose {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Foreground, Self::ReadAhead, Self::Upload, Self::Upkeep];

    /// The purpose of this thread's requests.
    #[must_use]
    pub fn current() -> Self {
        PURPOSE.get().or_else(|| PROCESS_PURPOSE.get().copied()).unwrap_or_default()
    }

    /// Gives requests of this thread the purpose.
    pub fn enter(self) -> PurposeScope {
        PurposeScope { before: PURPOSE.replace(Some(self)), bound: PhantomData }
    }

    /// Gives this thread's requests the purpose for as long as the thread lives.
    pub fn set_for_thread(self) {
        PURPOSE.set(Some(self));
    }

    /// Gives the purpose to requests of all threads that have none of their own. For commands that do nothing else; a
    /// second call changes nothing.
    pub fn set_for_process(self) {
        let _ = PROCESS_PURPOSE.set(self);
    }

    /// The name in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::ReadAhead => "read-ahead",
            Self::Upload => "upload",
            Self::Upkeep => "upkeep",
        }
    }
}

impl Drop for PurposeScope {
    fn drop(&mut self) {
        PURPOSE.set(self.before);
    }
}

impl<T> PerPurpose<T> {
    /// The value of a purpose.
    pub fn get(&self, purpose: RequestPurpose) -> &T {
        match purpose {
            RequestPurpose::Foreground => &self.foreground,
            RequestPurpose::ReadAhead => &self.read_ahead,
            RequestPurpose::Upload => &self.upload,
            RequestPurpose::Upkeep => &self.upkeep,
        }
    }

    /// The value of a purpose, to be changed.
    pub fn get_mut(&mut self, purpose: RequestPurpose) -> &mut T {
        match purpose {
            RequestPurpose::Foreground => &mut self.foreground,
            RequestPurpose::ReadAhead => &mut self.read_ahead,
            RequestPurpose::Upload => &mut self.upload,
            RequestPurpose::Upkeep => &mut self.upkeep,
        }
    }

    /// The values that a function makes of these.
    pub fn map<U>(&self, change: impl Fn(&T) -> U) -> PerPurpose<U> {
        PerPurpose {
            foreground: change(&self.foreground),
            read_ahead: change(&self.read_ahead),
            upload: change(&self.upload),
            upkeep: change(&self.upkeep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_with_what_was_before() {
        assert_eq!(RequestPurpose::current(), RequestPurpose::Foreground);
        let outer = RequestPurpose::Upkeep.enter();
        let inner = RequestPurpose::ReadAhead.enter();
        assert_eq!(RequestPurpose::current(), RequestPurpose::ReadAhead);
        drop(inner);
        assert_eq!(RequestPurpose::current(), RequestPurpose::Upkeep);
        drop(outer);
        assert_eq!(RequestPurpose::current(), RequestPurpose::Foreground);
    }
}
