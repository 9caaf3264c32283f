//! The page and its API, over real connections to the real program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod answers;
mod events;
mod security;
mod stand;
