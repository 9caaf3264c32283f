//! What reading content may do to what is on this machine: fetch more of it, keep it for long.
//!
//! Invariant: a policy belongs to a thread, as a purpose does, and is handed on with the reads. It never changes what is
//! read: content that may not be fetched is an error. Names and attributes are fetched for everybody.

use std::cell::Cell;
use std::marker::PhantomData;

/// What the reads of a thread may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FetchPolicy {
    /// Content is fetched, and stays the longer in the cache the more often it is read.
    #[default]
    Ordinary,
    /// Content is fetched, and goes before what others read: one reader looks into very many files once.
    Scan,
    /// Only what is on this machine is read.
    Refuse,
}

thread_local! {
    static POLICY: Cell<FetchPolicy> = const { Cell::new(FetchPolicy::Ordinary) };
}

/// Until it is dropped, the reads of this thread have a policy.
#[must_use]
pub struct FetchPolicyScope {
    before: FetchPolicy,
    /// The scope ends on the thread on which it began.
    bound: PhantomData<*const ()>,
}

impl FetchPolicy {
    /// The policy of this thread's reads.
    #[must_use]
    pub fn current() -> Self {
        POLICY.get()
    }

    /// Gives the reads of this thread the policy.
    pub fn enter(self) -> FetchPolicyScope {
        FetchPolicyScope { before: POLICY.replace(self), bound: PhantomData }
    }
}

impl Drop for FetchPolicyScope {
    fn drop(&mut self) {
        POLICY.set(self.before);
    }
}
