//! Random bytes from the operating system, and nonces drawn from a small buffer of them per thread.
//!
//! Invariant: no nonce is handed out twice, also not across `fork`: a buffer belongs to the process that filled it.

use std::cell::RefCell;

use zeroize::Zeroize;

/// Length of an XChaCha20-Poly1305 nonce, bytes: long enough for random ones never to meet.
pub(crate) const NONCE_LEN: usize = 24;

/// Nonces fetched at once. One system call for 64 of them is below 1 % of the cost of sealing small blobs, and few
/// enough that a thread's buffer stays below a page.
const NONCES_PER_REFILL: usize = 64;

/// Checks that the operating system has randomness to give. One that answered once goes on answering: so who checks
/// before the first key is made or used has an error here, and no panic later.
pub fn check_randomness() -> std::io::Result<()> {
    // One byte is enough: the system's source blocks or fails before it is seeded, and never afterwards.
    Ok(getrandom::fill(&mut [0])?)
}

/// Fills `out` from the operating system's random source.
///
/// # Panics
/// When there is none, which [`check_randomness`] tells before: with a guessable nonce or key nothing that follows
/// would be safe.
pub fn fill_random(out: &mut [u8]) {
    if let Err(error) = getrandom::fill(out) {
        panic!("the operating system's random source failed after it had answered: {error}");
    }
}

struct NoncePool {
    bytes: [u8; NONCE_LEN * NONCES_PER_REFILL],
    used: usize,
    // The process that filled the buffer: a forked child has a copy of it, and must not use the same nonces.
    owner: u32,
}

impl NoncePool {
    const EMPTY: Self =
        Self { bytes: [0; NONCE_LEN * NONCES_PER_REFILL], used: NONCE_LEN * NONCES_PER_REFILL, owner: 0 };

    fn take_nonce(&mut self, process: u32) -> [u8; NONCE_LEN] {
        // The process is compared each time: no handler at a fork would run in a child that was made past libc.
        if self.used >= self.bytes.len() || self.owner != process {
            fill_random(&mut self.bytes);
            self.used = 0;
            self.owner = process;
        }
        let mut nonce = [0; NONCE_LEN];
        let taken = &mut self.bytes[self.used..self.used + NONCE_LEN];
        nonce.copy_from_slice(taken);
        // What was used is wiped at once: a later read of this memory, as in a core dump, does not give the nonces
        // again.
        taken.zeroize();
        self.used += NONCE_LEN;
        nonce
    }
}

thread_local! {
    static POOL: RefCell<NoncePool> = const { RefCell::new(NoncePool::EMPTY) };
}

/// A nonce that was never handed out before.
///
/// # Panics
/// When the operating system has no randomness to give.
pub(crate) fn generate_nonce() -> [u8; NONCE_LEN] {
    let process = std::process::id();
    POOL.with_borrow_mut(|pool| pool.take_nonce(process))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn nonces_do_not_repeat_across_refills_and_threads() {
        let draw = || (0..3 * NONCES_PER_REFILL).map(|_| generate_nonce()).collect::<Vec<_>>();
        let mut all = draw();
        all.extend(std::thread::spawn(draw).join().expect("the thread draws"));
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_forked_copy_of_the_buffer_is_not_used() {
        let mut parent = NoncePool::EMPTY;
        parent.take_nonce(1);
        let mut child = NoncePool { bytes: parent.bytes, used: parent.used, owner: parent.owner };
        assert_ne!(parent.take_nonce(1), child.take_nonce(2));
    }
}
