//! An object that is uploaded in parts.
//!
//! Invariant: nothing stands at the key before [`PlainUpload::finish`]. An upload that is dropped is given up at the
//! service, too, unless it is kept for the next run. Memory is bounded by the parts that callers hold.

mod resumable;
mod state;
mod stream;

use bytes::Bytes;
use parking_lot::Mutex;
use vellum_types::UnixTime;

use self::resumable::ResumableUpload;
pub(super) use self::state::UploadStates;
pub(crate) use self::state::fuzz_decoder as fuzz_upload_record;
pub use self::state::{InterruptedUpload, list_interrupted_uploads};
use self::stream::StreamUpload;
use super::PlainObjects;
use crate::error::StoreError;
use crate::object::plain::{ObjectCondition, ObjectTag};

/// Parts of one object under way at once, a count.
const PARTS_AT_ONCE: usize = 4;
/// Shortest part, bytes: enough for a connection to come up to speed.
const PART_MIN: u64 = 8 << 20;
/// Most parts that services allow, with some to spare, a count.
const PARTS_MAX: u64 = 9_000;

/// A file that is uploaded, and what it replaces.
#[derive(Debug, Clone, Copy)]
pub struct UploadedFile<'a> {
    /// The key of the object.
    pub key: &'a str,
    /// Its length, bytes.
    pub size: u64,
    /// When it was last changed.
    pub mtime: UnixTime,
    /// What must stand at the key.
    pub expected: &'a ObjectCondition,
}

/// An upload in parts. All parts but the last have the length [`PlainObjects::part_len`], and are numbered from 1.
pub struct PlainUpload<'a> {
    way: UploadWay<'a>,
}

enum UploadWay<'a> {
    Resumable(ResumableUpload<'a>),
    Stream(Mutex<StreamUpload<'a>>),
}

impl PlainObjects {
    /// How many bytes each part of an object of this length has.
    #[must_use]
    pub fn part_len(size: u64) -> u64 {
        PART_MIN.max(size.div_ceil(PARTS_MAX).next_multiple_of(1 << 20))
    }

    /// Begins an upload, or continues that of an earlier run. An object that is empty is no object for parts.
    pub fn begin_upload(&self, file: &UploadedFile<'_>) -> Result<PlainUpload<'_>, StoreError> {
        let way = match self.service.can_resume_uploads() {
            true => UploadWay::Resumable(ResumableUpload::begin(self, file)?),
            false => UploadWay::Stream(Mutex::new(self.begin_stream_upload(file)?)),
        };
        Ok(PlainUpload { way })
    }

    /// Whether the object is what an upload makes of a file.
    fn has_uploaded(&self, file: &UploadedFile<'_>) -> Result<bool, StoreError> {
        // The old version may have the same length and time. It cannot have the same tag.
        let is_new = |tag: &ObjectTag| match file.expected {
            ObjectCondition::Absent => true,
            ObjectCondition::Unchanged(old) => !old.is_same_version(tag),
        };
        let found = self.stat_object(file.key)?;
        Ok(found.is_some_and(|head| {
            head.size == file.size && head.mtime == Some(file.mtime) && is_new(&head.tag)
        }))
    }
}

impl PlainUpload<'_> {
    /// How many parts can be sent at once. If it is one, they are sent in their order.
    #[must_use]
    pub fn parts_at_once(&self) -> usize {
        match &self.way {
            UploadWay::Resumable(_) => PARTS_AT_ONCE,
            // It sends several by itself.
            UploadWay::Stream(_) => 1,
        }
    }

    /// Whether the service has this part of an earlier run; then it is not sent again.
    #[must_use]
    pub fn has_part(&self, number: u32, part: &[u8]) -> bool {
        match &self.way {
            UploadWay::Resumable(upload) => upload.reuse_part(number, part),
            UploadWay::Stream(_) => false,
        }
    }

    /// Sends a part.
    pub fn send_part(&self, number: u32, part: &Bytes) -> Result<(), StoreError> {
        match &self.way {
            UploadWay::Resumable(upload) => upload.send_part(number, part),
            UploadWay::Stream(upload) => upload.lock().write_part(part),
        }
    }

    /// Makes the object of the parts. Fails with [`StoreError::Changed`] if something else than expected has the key.
    pub fn finish(self) -> Result<(), StoreError> {
        match self.way {
            UploadWay::Resumable(upload) => upload.finish(),
            UploadWay::Stream(upload) => upload.into_inner().finish(),
        }
    }

    /// Leaves the parts at the service for the next run, if that can find them.
    pub fn keep_for_next_run(self) {
        match self.way {
            UploadWay::Resumable(upload) => upload.keep(),
            // Dropping it gives it up.
            UploadWay::Stream(_) => {}
        }
    }
}
