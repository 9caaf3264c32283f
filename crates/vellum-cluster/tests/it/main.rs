//! A server and clients without a kernel: connections that break, peers that are hostile, sessions that end; and the lock table
//! beside the kernel's own locks.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;
mod hostile;
mod kernel_caches;
mod kernel_locks;
mod leases;
mod relay;
mod sessions;
mod stand;
mod stored_writes;
