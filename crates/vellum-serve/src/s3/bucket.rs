//! The bucket: a tree, and what is under way in it.

use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{CommonPrefix, ETag, EncodingType, Object, StreamingBlob};
use s3s::{S3Result, s3_error};
use tokio::sync::Semaphore;

use super::attributes::ObjectAttributes;
use super::checksums::ExpectedChecksums;
use super::conditions::ReadConditions;
use super::errors::{parse_key, run_blocking, tree_error};
use super::listing::{KeyLister, KeyPage, KeyQuery, KeyRow};
use super::multipart::UploadTable;
use super::objects::{FoundObject, byte_count, find_object, modified_time, object_size, object_tag};
use super::upload::{PlacedObject, ReceivedContent, WritableTree, WriteConditions, receive_content};
use crate::served_tree::ServedTree;

/// Listings at once: each holds the names of a directory.
const LISTINGS: usize = 4;
/// What stays as it is in a key that is encoded: as S3 does it.
const KEY_ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A tree as a bucket.
pub(super) struct TreeBucket {
    pub(super) name: String,
    pub(super) tree: ServedTree,
    /// None: it can only be read.
    writable: Option<WritableTree>,
    pub(super) uploads: Arc<UploadTable>,
    lister: Arc<KeyLister>,
    listings: Arc<Semaphore>,
}

/// An object that is to be written.
pub(super) struct NewObject {
    pub(super) bucket: String,
    pub(super) key: String,
    pub(super) attributes: ObjectAttributes,
    pub(super) conditions: WriteConditions,
}

/// Content that arrives with a request.
pub(super) struct NewContent {
    pub(super) body: Option<StreamingBlob>,
    pub(super) expected: ExpectedChecksums,
    pub(super) length: Option<i64>,
}

impl TreeBucket {
    /// A bucket of this name. `can_write`: what is in a live worktree may be changed.
    pub(super) fn new(name: String, tree: ServedTree, can_write: bool) -> Self {
        let writable = tree.worktree().filter(|_| can_write).cloned().map(WritableTree::new);
        let lister = Arc::new(KeyLister::new(tree.clone()));
        let listings = Arc::new(Semaphore::new(LISTINGS));
        Self { name, tree, writable, uploads: Arc::default(), lister, listings }
    }

    pub(super) fn check_name(&self, bucket: &str) -> S3Result<()> {
        if bucket == self.name {
            return Ok(());
        }
        Err(s3_error!(NoSuchBucket, "there is one bucket, which is called '{}'", self.name))
    }

    /// The tree, if it can be written.
    pub(super) fn writable(&self, bucket: &str) -> S3Result<WritableTree> {
        self.check_name(bucket)?;
        self.writable.clone().ok_or(s3_error!(AccessDenied, "this can only be read"))
    }

    pub(super) async fn list(&self, bucket: &str, query: KeyQuery) -> S3Result<KeyPage> {
        self.check_name(bucket)?;
        let permit = self.listings.clone().acquire_owned().await.map_err(|_| s3_error!(InternalError))?;
        let lister = self.lister.clone();
        run_blocking(move || {
            let _permit = permit;
            lister.list(&query).map_err(tree_error)
        })
        .await
    }

    pub(super) async fn find(
        &self,
        bucket: &str,
        key: String,
        conditions: ReadConditions,
    ) -> S3Result<FoundObject> {
        self.check_name(bucket)?;
        let tree = self.tree.clone();
        let found = run_blocking(move || find_object(&tree, &key)).await?;
        conditions.check(&found.tag, &found.modified)?;
        Ok(found)
    }

    /// Writes an object. Returns it, and what its content was received as.
    pub(super) async fn put(
        &self,
        new: NewObject,
        content: NewContent,
    ) -> S3Result<(PlacedObject, ReceivedContent)> {
        let tree = self.writable(&new.bucket)?;
        let key = parse_key(&new.key)?;
        let NewContent { body, expected, length } = content;
        let received = receive_content(&tree.worktree, body, expected, length).await?;
        run_blocking(move || {
            if key.is_dir() {
                if received.size > 0 {
                    return Err(s3_error!(
                        InvalidArgument,
                        "a key that ends in '/' is a directory, which has no content"
                    ));
                }
                return tree.place_directory(&key, &new.conditions).map(|placed| (placed, received));
            }
            new.attributes.write(&received.file)?;
            tree.place_file(&key, &received.file, &new.conditions).map(|placed| (placed, received))
        })
        .await
    }

    pub(super) async fn delete(&self, bucket: &str, key: &str, conditions: WriteConditions) -> S3Result<()> {
        let tree = self.writable(bucket)?;
        let key = parse_key(key)?;
        run_blocking(move || tree.delete_object(&key, &conditions)).await
    }

    /// The tag of a file of this tree.
    pub(super) fn file_tag(&self, file: &vellum_library::File) -> S3Result<ETag> {
        Ok(object_tag(&self.tree, &file.stat().map_err(tree_error)?))
    }

    /// The rows of a listing as S3 has them.
    pub(super) fn describe_rows(
        &self,
        page: KeyPage,
        encoding: Option<&EncodingType>,
    ) -> (Vec<Object>, Vec<CommonPrefix>) {
        let mut objects = Vec::new();
        let mut prefixes = Vec::new();
        for row in page.rows {
            match row {
                KeyRow::Prefix(key) => {
                    prefixes.push(CommonPrefix { prefix: Some(encode_key(&key, encoding)) })
                }
                KeyRow::Object { key, metadata } => objects.push(Object {
                    e_tag: Some(object_tag(&self.tree, &metadata)),
                    last_modified: Some(modified_time(&metadata)),
                    size: Some(byte_count(object_size(&metadata))),
                    key: Some(encode_key(&key, encoding)),
                    ..Object::default()
                }),
            }
        }
        (objects, prefixes)
    }
}

/// A key as a listing has it.
pub(super) fn encode_key(key: &str, encoding: Option<&EncodingType>) -> String {
    match encoding {
        Some(encoding) if encoding.as_str() == EncodingType::URL => {
            utf8_percent_encode(key, KEY_ENCODED).to_string()
        }
        // XML has no way to write control characters.
        Some(_) | None => {
            key.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "\u{fffd}")
        }
    }
}
