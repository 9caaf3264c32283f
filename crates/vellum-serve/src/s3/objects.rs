//! Objects: what has a key, and its content.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream;
use s3s::dto::{ETag, Range, StreamingBlob, Timestamp};
use s3s::{S3Result, s3_error};
use vellum_library::{File, Metadata};

use super::attributes::ObjectAttributes;
use super::errors::tree_error;
use super::keys::ObjectKey;
use crate::content_blocks::ContentBlocks;
use crate::served_tree::ServedTree;

/// An object that was found.
pub(super) struct FoundObject {
    /// None: it is a directory, which has no content.
    pub(super) file: Option<File>,
    pub(super) metadata: Metadata,
    pub(super) attributes: ObjectAttributes,
    pub(super) tag: ETag,
    pub(super) modified: Timestamp,
}

/// A part of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObjectPart {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) content_range: Option<String>,
}

/// Finds and opens what has a key.
pub(super) fn find_object(tree: &ServedTree, key: &str) -> S3Result<FoundObject> {
    // For those who only ask, there is nothing at a key that cannot be.
    let key = ObjectKey::parse(key).map_err(|refusal| s3_error!(NoSuchKey, "{refusal}"))?;
    let metadata = match tree.stat(key.path()) {
        Ok(metadata) => metadata,
        // Of POSIX: it is not there, or the way to it does not lead anywhere.
        Err(error) if error.errno().is_some() => return Err(s3_error!(NoSuchKey)),
        Err(error) => return Err(tree_error(error)),
    };
    if key.is_dir() && metadata.is_dir() {
        return Ok(FoundObject::new(tree, None, metadata, ObjectAttributes::default()));
    }
    if key.is_dir() || !metadata.is_file() {
        return Err(s3_error!(NoSuchKey));
    }
    let file = tree.open(key.path()).map_err(tree_error)?;
    // Of the file that was opened: another one may have its name meanwhile.
    let metadata = file.stat().map_err(tree_error)?;
    let attributes = ObjectAttributes::read(&file, &metadata)?;
    Ok(FoundObject::new(tree, Some(file), metadata, attributes))
}

/// Never 32 hexadecimal digits: clients take these for an MD5 of the content. With a number of parts behind it they do not.
pub(super) fn object_tag(tree: &ServedTree, metadata: &Metadata) -> ETag {
    ETag::Strong(format!("{}-1", tree.entity_tag(metadata)))
}

/// Times as S3 writes them: of whole seconds, from 1970 to 9999.
pub(super) fn modified_time(metadata: &Metadata) -> Timestamp {
    let last = UNIX_EPOCH + Duration::from_secs(ServedTree::LAST_DATE);
    whole_seconds(metadata.modified().clamp(UNIX_EPOCH, last))
}

/// A time since 1970 without its fraction.
pub(super) fn whole_seconds(time: SystemTime) -> Timestamp {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// A count of bytes as S3 writes it.
pub(super) fn byte_count(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The size of an object: a directory has no content.
pub(super) fn object_size(metadata: &Metadata) -> u64 {
    if metadata.is_dir() { 0 } else { metadata.size() }
}

impl FoundObject {
    fn new(tree: &ServedTree, file: Option<File>, metadata: Metadata, attributes: ObjectAttributes) -> Self {
        let tag = object_tag(tree, &metadata);
        let modified = modified_time(&metadata);
        Self { file, metadata, attributes, tag, modified }
    }

    pub(super) fn size(&self) -> u64 {
        object_size(&self.metadata)
    }

    /// The part that a range asks for.
    pub(super) fn part(&self, range: Option<Range>) -> S3Result<ObjectPart> {
        let size = self.size();
        let Some(range) = range else { return Ok(ObjectPart { start: 0, len: size, content_range: None }) };
        let range = range.check(size).map_err(|_| s3_error!(InvalidRange))?;
        if range.is_empty() {
            return Err(s3_error!(InvalidRange));
        }
        let content_range = format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1));
        let len = range.end.saturating_sub(range.start);
        Ok(ObjectPart { start: range.start, len, content_range: Some(content_range) })
    }
}

/// The content of a part, read by and by.
pub(super) fn stream_part(file: File, part: &ObjectPart) -> StreamingBlob {
    let blocks = ContentBlocks::new(Arc::new(file), part.start, part.len);
    StreamingBlob::wrap(stream::try_unfold(blocks, |mut blocks| async move {
        Ok::<_, io::Error>(blocks.next_block().await?.map(|block| (block, blocks)))
    }))
}
