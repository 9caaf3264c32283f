//! The stat cache: the attributes of every file when it was last recorded, so that an unchanged file need not be read
//! again.
//!
//! Invariant: the cache only ever saves work. A missing, torn, damaged or foreign file is no cache; an entry counts
//! as unchanged only if no change since its content was read could have left its attributes alone (see [`FilesystemTime`]).
//! docs/format.md draws every byte.

mod format;
mod load;
mod merge;
mod stamp;
mod write;

pub(crate) use load::check_stat_cache_tables;
pub use load::{CachedDir, CachedEntry, StatCache, StatCacheError};
pub(crate) use merge::copy_stat_cache;
pub use merge::{NewStatCache, RecordedEntry, write_stat_cache};
pub use stamp::FilesystemTime;
pub use write::{NewStatCacheEntry, StatCacheBlockId, StatCacheWriter};

#[cfg(test)]
mod tests;
