//! Uploads in parts: each part is a file without a name, so that nothing is left of an upload that is aborted, or of a gateway
//! that is killed. They end with the gateway.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use s3s::dto::{Checksum, CompletedPart, ETag, Part, Timestamp};
use s3s::{S3Result, s3_error};
use vellum_library::File;

use super::attributes::ObjectAttributes;
use super::checksums::{ExpectedChecksums, check_equal};
use super::errors::tree_error;
use super::keys::ObjectKey;
use super::objects::{byte_count, whole_seconds};
use super::upload::{PlacedObject, ReceivedContent, WritableTree, WriteConditions};
use crate::received_file::random_word;

/// Uploads at once.
const UPLOADS_MAX: usize = 1000;
/// Parts of one upload: that of S3.
const PARTS_MAX: u32 = 10_000;
/// Parts of all uploads: each holds some hundred bytes of memory.
const ALL_PARTS_MAX: usize = 50_000;
/// Smallest part that is not the last one, bytes: that of S3.
const PART_MIN: u64 = 5 << 20;
/// Time after which an upload of which nothing was heard is aborted, if another one begins.
const UPLOAD_IDLE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Uploads that were completed and are remembered, for clients who did not get the answer.
const COMPLETED_MAX: usize = 1000;
/// Bytes that are read at once to compute a checksum.
const READ_AT_ONCE: usize = 1 << 20;

/// All uploads in parts.
#[derive(Default)]
pub(super) struct UploadTable(Mutex<UploadTableState>);

#[derive(Default)]
struct UploadTableState {
    uploads: BTreeMap<String, OpenUpload>,
    completed: VecDeque<CompletedUpload>,
}

/// An upload of which parts arrive.
struct OpenUpload {
    key: ObjectKey,
    attributes: ObjectAttributes,
    begun: SystemTime,
    heard: Instant,
    parts: BTreeMap<u32, UploadedPart>,
}

struct CompletedUpload {
    id: String,
    key: String,
    tag: ETag,
}

/// A part that has arrived.
#[derive(Clone)]
struct UploadedPart {
    file: Arc<File>,
    size: u64,
    tag: ETag,
    checksum: Checksum,
    arrived: SystemTime,
}

/// An upload as a listing has it.
pub(super) struct UploadRow {
    pub(super) key: String,
    pub(super) id: String,
    pub(super) begun: Timestamp,
}

/// What a client says that an upload consists of.
pub(super) struct UploadCompletion {
    pub(super) key: ObjectKey,
    pub(super) id: String,
    pub(super) parts: Vec<CompletedPart>,
    pub(super) size: Option<i64>,
    pub(super) checksum: Checksum,
    pub(super) conditions: WriteConditions,
}

/// The number of a part, if there can be such a part.
pub(super) fn part_number(number: i32) -> S3Result<u32> {
    let number = u32::try_from(number).ok().filter(|number| (1..=PARTS_MAX).contains(number));
    number.ok_or(s3_error!(InvalidArgument, "parts have numbers from 1 to {PARTS_MAX}"))
}

impl UploadTableState {
    fn find(&mut self, key: &ObjectKey, id: &str) -> S3Result<&mut OpenUpload> {
        let found = self.uploads.get_mut(id).filter(|upload| upload.key == *key);
        found.ok_or(s3_error!(
            NoSuchUpload,
            "there is no such upload: it was completed or aborted, or the gateway ended meanwhile"
        ))
    }

    fn find_completed(&self, key: &ObjectKey, id: &str) -> Option<ETag> {
        let found = self.completed.iter().find(|done| done.id == id && done.key == key.as_str());
        found.map(|done| done.tag.clone())
    }
}

impl UploadTable {
    /// Begins an upload. Returns its id.
    pub(super) fn create(&self, key: ObjectKey, attributes: ObjectAttributes) -> S3Result<String> {
        let id = random_word();
        let begun = SystemTime::now();
        let heard = Instant::now();
        let upload = OpenUpload { key, attributes, begun, heard, parts: BTreeMap::new() };
        let mut state = self.0.lock();
        // Those that nobody goes on with. Their files are closed after the lock is released.
        let mut forgotten = Vec::new();
        let old = state.uploads.iter().filter(|(_, old)| old.heard.elapsed() > UPLOAD_IDLE);
        let old: Vec<String> = old.map(|(id, _)| id.clone()).collect();
        forgotten.extend(old.iter().filter_map(|id| state.uploads.remove(id)));
        let is_full = state.uploads.len() >= UPLOADS_MAX || state.uploads.contains_key(&id);
        if !is_full {
            state.uploads.insert(id.clone(), upload);
        }
        drop(state);
        drop(forgotten);
        if is_full {
            Err(s3_error!(SlowDown, "{UPLOADS_MAX} uploads in parts are under way"))
        } else {
            Ok(id)
        }
    }

    /// Fails unless there is such an upload.
    pub(super) fn check(&self, key: &ObjectKey, id: &str) -> S3Result<()> {
        self.0.lock().find(key, id).map(drop)
    }

    /// Adds a part, in the place of one of the same number. `tag` is that of the content's file.
    pub(super) fn add_part(
        &self,
        key: &ObjectKey,
        id: &str,
        number: u32,
        content: ReceivedContent,
        tag: ETag,
    ) -> S3Result<()> {
        let ReceivedContent { file, size, checksum } = content;
        let part = UploadedPart { file: Arc::new(file), size, tag, checksum, arrived: SystemTime::now() };
        let mut state = self.0.lock();
        let all: usize = state.uploads.values().map(|upload| upload.parts.len()).sum();
        let upload = state.find(key, id)?;
        if all >= ALL_PARTS_MAX && !upload.parts.contains_key(&number) {
            return Err(s3_error!(SlowDown, "{ALL_PARTS_MAX} parts of uploads are here"));
        }
        upload.heard = Instant::now();
        let replaced = upload.parts.insert(number, part);
        // Closing a file may wait.
        drop(state);
        drop(replaced);
        Ok(())
    }

    /// Ends an upload without an object.
    pub(super) fn abort(&self, key: &ObjectKey, id: &str) -> S3Result<()> {
        let mut state = self.0.lock();
        state.find(key, id)?;
        let aborted = state.uploads.remove(id);
        drop(state);
        drop(aborted);
        Ok(())
    }

    /// At most `limit` parts after a number, and whether others follow.
    pub(super) fn list_parts(
        &self,
        key: &ObjectKey,
        id: &str,
        after: u32,
        limit: usize,
    ) -> S3Result<(Vec<Part>, bool)> {
        let mut state = self.0.lock();
        let mut parts = state.find(key, id)?.parts.range(after.saturating_add(1)..);
        let rows = parts.by_ref().take(limit).map(|(number, part)| Part {
            part_number: i32::try_from(*number).ok(),
            size: Some(byte_count(part.size)),
            e_tag: Some(part.tag.clone()),
            last_modified: Some(whole_seconds(part.arrived)),
            checksum_crc32: part.checksum.checksum_crc32.clone(),
            checksum_crc32c: part.checksum.checksum_crc32c.clone(),
            checksum_crc64nvme: part.checksum.checksum_crc64nvme.clone(),
            checksum_sha1: part.checksum.checksum_sha1.clone(),
            checksum_sha256: part.checksum.checksum_sha256.clone(),
        });
        let rows = rows.collect();
        Ok((rows, parts.next().is_some()))
    }

    /// All uploads whose keys begin so, by key and id.
    pub(super) fn list(&self, prefix: &str) -> Vec<UploadRow> {
        let state = self.0.lock();
        let wanted = state.uploads.iter().filter(|(_, upload)| upload.key.as_str().starts_with(prefix));
        let rows = wanted.map(|(id, upload)| UploadRow {
            key: upload.key.as_str().to_owned(),
            id: id.clone(),
            begun: whole_seconds(upload.begun),
        });
        let mut rows: Vec<_> = rows.collect();
        drop(state);
        rows.sort_by(|a, b| (&a.key, &a.id).cmp(&(&b.key, &b.id)));
        rows
    }

    /// Makes an object of the parts that are named. Content is shared, not copied. If it fails, the upload goes on.
    pub(super) fn complete(&self, tree: &WritableTree, completion: &UploadCompletion) -> S3Result<ETag> {
        let UploadCompletion { key, id, .. } = completion;
        let mut state = self.0.lock();
        // The client did not get the answer, and asks again.
        if let Some(tag) = state.find_completed(key, id) {
            return Ok(tag);
        }
        state.find(key, id)?;
        // Taken out: what asks for it in between finds none, and nothing is assembled twice.
        let upload = state.uploads.remove(id);
        drop(state);
        let upload = upload.ok_or(s3_error!(NoSuchUpload))?;
        let done = upload.assemble(tree, completion);
        let mut state = self.0.lock();
        match done {
            Ok(PlacedObject { tag, .. }) => {
                if state.completed.len() >= COMPLETED_MAX {
                    state.completed.pop_front();
                }
                let key = key.as_str().to_owned();
                state.completed.push_back(CompletedUpload { id: id.clone(), key, tag: tag.clone() });
                drop(state);
                drop(upload);
                Ok(tag)
            }
            Err(error) => {
                state.uploads.insert(id.clone(), upload);
                Err(error)
            }
        }
    }
}

impl OpenUpload {
    fn assemble(&self, tree: &WritableTree, completion: &UploadCompletion) -> S3Result<PlacedObject> {
        let parts = self.select_parts(&completion.parts)?;
        let file = tree.worktree.temp_file("").map_err(tree_error)?;
        let mut size = 0;
        for part in parts {
            if file.copy_range(&part.file, 0..part.size, size).map_err(tree_error)? != part.size {
                return Err(s3_error!(InternalError, "a part of the upload is not whole"));
            }
            size += part.size;
        }
        if completion.size.is_some_and(|said| u64::try_from(said) != Ok(size)) {
            return Err(s3_error!(
                InvalidRequest,
                "the parts have another size than x-amz-mp-object-size says"
            ));
        }
        check_whole(&file, &completion.checksum)?;
        self.attributes.write(&file)?;
        tree.place_file(&completion.key, &file, &completion.conditions)
    }

    /// The parts that are named, in their order.
    fn select_parts(&self, named: &[CompletedPart]) -> S3Result<Vec<&UploadedPart>> {
        if named.is_empty() {
            return Err(s3_error!(MalformedXML, "no part is named"));
        }
        let mut selected: Vec<&UploadedPart> = Vec::with_capacity(named.len());
        let mut last = 0;
        for part in named {
            let number = part_number(part.part_number.unwrap_or(0))?;
            if number <= last {
                return Err(s3_error!(InvalidPartOrder));
            }
            last = number;
            // Only the last part may be small.
            if selected.last().is_some_and(|before| before.size < PART_MIN) {
                return Err(s3_error!(EntityTooSmall));
            }
            let found = self.parts.get(&number);
            let found =
                found.filter(|found| part.e_tag.as_ref().is_none_or(|tag| tag.value() == found.tag.value()));
            let found = found.ok_or(s3_error!(InvalidPart, "there is no part {number} with this ETag"))?;
            let said = Checksum {
                checksum_crc32: part.checksum_crc32.clone(),
                checksum_crc32c: part.checksum_crc32c.clone(),
                checksum_crc64nvme: part.checksum_crc64nvme.clone(),
                checksum_sha1: part.checksum_sha1.clone(),
                checksum_sha256: part.checksum_sha256.clone(),
                checksum_type: None,
            };
            check_equal(&found.checksum, &said)?;
            selected.push(found);
        }
        Ok(selected)
    }
}

/// Fails unless a file has the checksums. Those of the parts' checksums, which end in their number, are passed over: those of
/// the parts were compared one by one.
fn check_whole(file: &File, said: &Checksum) -> S3Result<()> {
    let of_content = |said: &Option<String>| said.clone().filter(|said| !said.contains('-'));
    let head = Checksum {
        checksum_crc32: of_content(&said.checksum_crc32),
        checksum_crc32c: of_content(&said.checksum_crc32c),
        checksum_crc64nvme: of_content(&said.checksum_crc64nvme),
        checksum_sha1: of_content(&said.checksum_sha1),
        checksum_sha256: of_content(&said.checksum_sha256),
        checksum_type: None,
    };
    let expected = ExpectedChecksums { head, ..ExpectedChecksums::default() };
    let mut hasher = expected.start_hasher();
    if !hasher.is_needed() {
        return Ok(());
    }
    let mut buffer = vec![0; READ_AT_ONCE];
    let mut at = 0;
    loop {
        let count = file.read_at(&mut buffer, at).map_err(tree_error)?;
        if count == 0 {
            return expected.compare(hasher).map(drop);
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
        at += count as u64;
    }
}
