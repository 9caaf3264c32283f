//! Uploads: a file without a name, which gets its name when all of it has arrived. One that breaks off is never seen.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use rustix::io::Errno;
use s3s::dto::{Checksum, ETag, ETagCondition, StreamingBlob, Timestamp};
use s3s::{S3Result, s3_error};
use vellum_library::{File, Metadata, Tree as _, Worktree};

use super::checksums::{ContentHasher, ExpectedChecksums};
use super::errors::{content_error, path_conflict, run_blocking, tree_error};
use super::keys::ObjectKey;
use super::objects::{modified_time, object_tag};
use crate::received_file::{MODE, has_errno, replace_file, write_fully};
use crate::served_tree::ServedTree;

/// Bytes that are gathered before they are written.
const WRITE_AT_ONCE: usize = 256 << 10;

/// A worktree that can be written.
#[derive(Clone)]
pub(super) struct WritableTree {
    pub(super) worktree: Worktree,
    /// Held while something gets a name or loses it, never while content is read or written. Nobody else changes the tree: what
    /// a condition found holds until this is released.
    naming: Arc<Mutex<()>>,
}

/// What has to hold of the object that is to be replaced or deleted.
#[derive(Debug, Default)]
pub(super) struct WriteConditions {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
}

/// Content that has arrived, in a file without a name.
pub(super) struct ReceivedContent {
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) checksum: Checksum,
}

/// An object that was made.
pub(super) struct PlacedObject {
    pub(super) tag: ETag,
    pub(super) modified: Timestamp,
}

/// Content that arrives.
struct ArrivingContent {
    file: File,
    size: u64,
    hasher: ContentHasher,
}

impl ArrivingContent {
    fn write(&mut self, pieces: &[Bytes]) -> S3Result<()> {
        for piece in pieces {
            self.hasher.update(piece);
            if !write_fully(&self.file, piece, self.size).map_err(tree_error)? {
                return Err(s3_error!(EntityTooLarge, "no file can be this large"));
            }
            self.size += piece.len() as u64;
        }
        Ok(())
    }
}

/// Writes the content of a request into a file without a name. Fails unless all of it arrives, as long as was said and with the
/// checksums that were given.
pub(super) async fn receive_content(
    worktree: &Worktree,
    body: Option<StreamingBlob>,
    expected: ExpectedChecksums,
    length: Option<i64>,
) -> S3Result<ReceivedContent> {
    let tree = worktree.clone();
    let hasher = expected.start_hasher();
    let mut content = run_blocking(move || {
        let file = tree.temp_file("").map_err(tree_error)?;
        Ok(ArrivingContent { file, size: 0, hasher })
    })
    .await?;
    let mut body = body;
    let mut has_ended = body.is_none();
    while !has_ended {
        let mut pieces = Vec::new();
        let mut gathered = 0;
        while gathered < WRITE_AT_ONCE {
            let next = match &mut body {
                Some(body) => body.next().await,
                None => None,
            };
            let Some(piece) = next else {
                has_ended = true;
                break;
            };
            let piece = piece.map_err(|error| content_error(&error))?;
            gathered += piece.len();
            pieces.push(piece);
        }
        content = run_blocking(move || content.write(&pieces).map(|()| content)).await?;
    }
    let ArrivingContent { file, size, hasher } = content;
    if length.is_some_and(|length| u64::try_from(length) != Ok(size)) {
        return Err(s3_error!(IncompleteBody));
    }
    let checksum = expected.compare(hasher)?;
    Ok(ReceivedContent { file, size, checksum })
}

impl WritableTree {
    pub(super) fn new(worktree: Worktree) -> Self {
        Self { worktree, naming: Arc::default() }
    }

    /// Gives a file the name that a key says, in the place of what has it.
    pub(super) fn place_file(
        &self,
        key: &ObjectKey,
        file: &File,
        conditions: &WriteConditions,
    ) -> S3Result<PlacedObject> {
        let _naming = self.naming.lock();
        self.check_conditions(key, conditions)?;
        let mode = match self.find_existing(key.path())? {
            None => MODE,
            Some(found) if found.is_file() => found.mode() & 0o7777,
            Some(found) if found.is_symlink() => MODE,
            Some(_) => return Err(path_conflict()),
        };
        file.set_mode(mode).map_err(tree_error)?;
        let named =
            self.make_parents(key.path()).and_then(|()| replace_file(&self.worktree, key.path(), file));
        if let Err(error) = named {
            // Directories that were made for it are not to be left.
            self.remove_empty_parents(key.path());
            return Err(tree_error(error));
        }
        let metadata = file.stat().map_err(tree_error)?;
        Ok(self.describe(&metadata))
    }

    /// Makes the directory that a key with a slash at its end says.
    pub(super) fn place_directory(
        &self,
        key: &ObjectKey,
        conditions: &WriteConditions,
    ) -> S3Result<PlacedObject> {
        let _naming = self.naming.lock();
        self.check_conditions(key, conditions)?;
        self.worktree.mkdir_all(key.path()).map_err(tree_error)?;
        let metadata = self.worktree.stat(key.path()).map_err(tree_error)?;
        Ok(self.describe(&metadata))
    }

    /// Deletes the object that a key names, and the directories that are empty then: without keys, S3 has none. It is not an
    /// error if there is none.
    pub(super) fn delete_object(&self, key: &ObjectKey, conditions: &WriteConditions) -> S3Result<()> {
        let _naming = self.naming.lock();
        self.check_conditions(key, conditions)?;
        let Some(found) = self.find_existing(key.path())? else { return Ok(()) };
        let is_object = if key.is_dir() { found.is_dir() } else { found.is_file() || found.is_symlink() };
        if !is_object {
            return Ok(());
        }
        match self.worktree.remove(key.path()) {
            Ok(()) => self.remove_empty_parents(key.path()),
            // A directory that has content is no object of its own.
            Err(error) if has_errno(&error, Errno::NOTEMPTY) => {}
            Err(error) => return Err(tree_error(error)),
        }
        Ok(())
    }

    fn check_conditions(&self, key: &ObjectKey, conditions: &WriteConditions) -> S3Result<()> {
        let WriteConditions { if_match, if_none_match } = conditions;
        if if_match.is_none() && if_none_match.is_none() {
            return Ok(());
        }
        let found = match self.worktree.stat(key.path()) {
            Ok(found) => {
                Some(found).filter(|found| if key.is_dir() { found.is_dir() } else { found.is_file() })
            }
            Err(error) if error.errno().is_some() => None,
            Err(error) => return Err(tree_error(error)),
        };
        match if_none_match {
            Some(wanted) if wanted.is_any() && found.is_some() => return Err(s3_error!(PreconditionFailed)),
            Some(wanted) if !wanted.is_any() => {
                return Err(s3_error!(NotImplemented, "what is written knows If-None-Match: * only"));
            }
            Some(_) | None => {}
        }
        let Some(wanted) = if_match else { return Ok(()) };
        let tag = self.describe(&found.ok_or(s3_error!(NoSuchKey))?).tag;
        let is_met = wanted.is_any() || wanted.as_etag().is_some_and(|wanted| wanted.strong_cmp(&tag));
        if is_met { Ok(()) } else { Err(s3_error!(PreconditionFailed)) }
    }

    fn find_existing(&self, path: &Path) -> S3Result<Option<Metadata>> {
        match self.worktree.lstat(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if has_errno(&error, Errno::NOENT) || has_errno(&error, Errno::NOTDIR) => Ok(None),
            Err(error) => Err(tree_error(error)),
        }
    }

    fn make_parents(&self, path: &Path) -> vellum_library::Result<()> {
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => self.worktree.mkdir_all(parent),
            Some(_) | None => Ok(()),
        }
    }

    /// Removes the directories above a path as far as they are empty.
    fn remove_empty_parents(&self, path: &Path) {
        let above = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        for dir in above {
            // A symlink would be removed itself.
            let is_dir = self.worktree.lstat(dir).is_ok_and(|found| found.is_dir());
            // What has content cannot be removed, and nothing above it then.
            if is_dir && self.worktree.remove(dir).is_err() {
                return;
            }
        }
    }

    fn describe(&self, metadata: &Metadata) -> PlacedObject {
        let tag = object_tag(&ServedTree::Live(self.worktree.clone()), metadata);
        PlacedObject { tag, modified: modified_time(metadata) }
    }
}
