//! One worktree on many machines: the protocol between them, its server and its clients.
//!
//! Deliberately absent: the log that makes a server replaceable (`vellum-shared-log`), terminals.
