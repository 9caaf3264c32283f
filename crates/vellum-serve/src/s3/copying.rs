//! Copies of objects, whole or as parts of uploads. Content is shared, not copied.

use std::ops::Range;

use s3s::dto::{CopyObjectInput, CopySource, ETag, MetadataDirective, Timestamp, UploadPartCopyInput};
use s3s::{S3ErrorCode, S3Result, s3_error};

use super::attributes::ObjectAttributes;
use super::bucket::TreeBucket;
use super::conditions::ReadConditions;
use super::errors::{parse_key, run_blocking, tree_error};
use super::multipart::part_number;
use super::objects::{FoundObject, whole_seconds};
use super::upload::{PlacedObject, ReceivedContent, WriteConditions};

impl TreeBucket {
    /// Copies an object.
    pub(super) async fn copy(&self, asked: CopyObjectInput) -> S3Result<PlacedObject> {
        let tree = self.writable(&asked.bucket)?;
        let key = parse_key(&asked.key)?;
        let replaces =
            asked.metadata_directive.as_ref().is_some_and(|how| how.as_str() == MetadataDirective::REPLACE);
        let source = source_key(&self.name, &asked.copy_source)?;
        if !replaces && source == key.as_str() {
            return Err(s3_error!(
                InvalidRequest,
                "an object that is copied onto itself needs other metadata"
            ));
        }
        let conditions = ReadConditions {
            if_match: asked.copy_source_if_match,
            if_none_match: asked.copy_source_if_none_match,
            if_modified_since: asked.copy_source_if_modified_since,
            if_unmodified_since: asked.copy_source_if_unmodified_since,
        };
        let found = self.find_source(source, conditions).await?;
        let new = ObjectAttributes {
            content_type: asked.content_type,
            cache_control: asked.cache_control,
            content_disposition: asked.content_disposition,
            content_encoding: asked.content_encoding,
            content_language: asked.content_language,
            ..ObjectAttributes::default()
        };
        let attributes = if replaces { new.with_metadata(asked.metadata)? } else { found.attributes.clone() };
        run_blocking(move || {
            let unconditional = WriteConditions::default();
            match (key.is_dir(), &found.file) {
                (true, None) => return tree.place_directory(&key, &unconditional),
                (true, Some(_)) => {
                    return Err(s3_error!(
                        InvalidArgument,
                        "a key that ends in '/' is a directory, which has no content"
                    ));
                }
                (false, _) => {}
            }
            let file = tree.worktree.temp_file("").map_err(tree_error)?;
            copy_content(&found, 0..found.size(), &file)?;
            attributes.write(&file)?;
            tree.place_file(&key, &file, &unconditional)
        })
        .await
    }

    /// Copies an object, or a range of it, as a part of an upload.
    pub(super) async fn copy_part(&self, asked: UploadPartCopyInput) -> S3Result<(ETag, Timestamp)> {
        let tree = self.writable(&asked.bucket)?;
        let key = parse_key(&asked.key)?;
        let number = part_number(asked.part_number)?;
        self.uploads.check(&key, &asked.upload_id)?;
        let source = source_key(&self.name, &asked.copy_source)?;
        let conditions = ReadConditions {
            if_match: asked.copy_source_if_match,
            if_none_match: asked.copy_source_if_none_match,
            if_modified_since: asked.copy_source_if_modified_since,
            if_unmodified_since: asked.copy_source_if_unmodified_since,
        };
        let found = self.find_source(source, conditions).await?;
        let range = match asked.copy_source_range.as_deref() {
            None => 0..found.size(),
            Some(text) => parse_source_range(text, found.size())?,
        };
        let size = range.end - range.start;
        let file = run_blocking(move || {
            let file = tree.worktree.temp_file("").map_err(tree_error)?;
            copy_content(&found, range, &file)?;
            Ok(file)
        })
        .await?;
        let tag = self.file_tag(&file)?;
        let content = ReceivedContent { file, size, checksum: s3s::dto::Checksum::default() };
        self.uploads.add_part(&key, &asked.upload_id, number, content, tag.clone())?;
        Ok((tag, whole_seconds(std::time::SystemTime::now())))
    }

    async fn find_source(&self, source: String, conditions: ReadConditions) -> S3Result<FoundObject> {
        let found = self.find(&self.name, source, conditions).await;
        found.map_err(|error| match error.code() {
            // There is nothing that the client would have already.
            S3ErrorCode::NotModified => s3_error!(PreconditionFailed),
            _ => error,
        })
    }
}

fn copy_content(found: &FoundObject, range: Range<u64>, file: &vellum_library::File) -> S3Result<()> {
    let Some(source) = &found.file else { return Ok(()) };
    let len = range.end - range.start;
    if file.copy_range(source, range, 0).map_err(tree_error)? == len {
        return Ok(());
    }
    Err(s3_error!(InternalError, "the source was changed meanwhile"))
}

/// The key of an object of this bucket.
fn source_key(bucket: &str, source: &CopySource) -> S3Result<String> {
    match source {
        CopySource::Bucket { version_id: Some(_), .. } => {
            Err(s3_error!(NotImplemented, "objects have no versions here"))
        }
        CopySource::Bucket { bucket: other, .. } if **other != *bucket => Err(s3_error!(NoSuchBucket)),
        CopySource::Bucket { key, .. } => Ok(key.to_string()),
        _ => Err(s3_error!(NotImplemented, "only objects of this bucket can be copied")),
    }
}

/// `bytes=FIRST-LAST`, which has to lie within the source.
fn parse_source_range(text: &str, size: u64) -> S3Result<Range<u64>> {
    let parse = || {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        let first: u64 = first.parse().ok()?;
        let end = last.parse::<u64>().ok()?.checked_add(1)?;
        (first < end).then_some(first..end)
    };
    let range =
        parse().ok_or(s3_error!(InvalidArgument, "x-amz-copy-source-range is not 'bytes=FIRST-LAST'"))?;
    if range.end > size {
        return Err(s3_error!(InvalidRange, "x-amz-copy-source-range is beyond the end of the source"));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_sources_lie_within_them() {
        for (text, expected) in
            [("bytes=0-9", Some(0..10)), ("bytes=3-3", Some(3..4)), ("bytes=0-10", None), ("bytes=5-4", None)]
        {
            assert_eq!(parse_source_range(text, 10).ok(), expected, "{text}");
        }
        for text in [
            "",
            "bytes=",
            "bytes=-1",
            "bytes=1-",
            "0-9",
            "bytes=0-18446744073709551615",
            "bytes=a-b",
            "bytes=0-1,2-3",
        ] {
            assert_eq!(parse_source_range(text, 10).ok(), None, "{text}");
        }
    }
}
