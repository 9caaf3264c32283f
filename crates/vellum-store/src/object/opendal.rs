//! Objects in any service that OpenDAL supports.
//!
//! Invariant: where the service can put on a condition, `put` and `swap` are atomic between machines. Where it
//! cannot, they check first and write after, under a lock of this process only: such a service must have one
//! writing process at a time. Calls block; the futures run on a small private runtime, so that callers may or
//! may not be inside a runtime of their own.

mod body;

use std::sync::{OnceLock, mpsc};

use opendal::{ErrorKind as DalKind, Operator};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Runtime;
use vellum_types::ErrorKind;

use super::{ObjectInfo, ObjectKey, ObjectStore, key};
use crate::error::StoreError;

/// Worker threads of the runtime, a count: they only wait for sockets and files.
const RUNTIME_THREADS: usize = 2;
/// Ranged gets worth having under way at once, a count: what hides 50 ms of latency at 4 MiB each.
const PARALLEL_GETS: usize = 8;

/// A ref's bytes, and the tag by which the service knows them.
type TaggedRef = (Vec<u8>, Option<String>);

/// A store over an OpenDAL operator.
pub struct OpendalStore {
    operator: Operator,
    place: String,
    guard: Mutex<()>,
    /// The service checks conditions, but not atomically: this process at least takes its turns.
    in_turns: bool,
}

impl OpendalStore {
    /// A store over an operator that is configured already. `place` is what messages call it: no secrets.
    #[must_use]
    pub fn new(operator: Operator, place: &str) -> Self {
        Self { operator, place: place.to_owned(), guard: Mutex::new(()), in_turns: false }
    }

    /// A store in the memory of this process.
    pub fn new_memory(place: &str) -> Result<Self, StoreError> {
        let built = Operator::new(opendal::services::Memory::default());
        Ok(Self::new(built.map_err(|e| wrap_address_error(place, &e))?, place))
    }

    /// A directory through OpenDAL, for comparison with [`super::LocalStore`], which is faster and safe for several
    /// processes.
    pub fn new_dir(path: &str) -> Result<Self, StoreError> {
        let service = opendal::services::Fs::default().root(path).atomic_write_dir(&format!("{path}/.tmp"));
        let operator = Operator::new(service).map_err(|e| wrap_address_error(path, &e))?;
        Ok(Self { in_turns: true, ..Self::new(operator, path) })
    }

    fn wrap_dal_error(&self, action: &'static str, key: &str, error: &opendal::Error) -> StoreError {
        let place = self.place.clone();
        let name = key.to_owned();
        match error.kind() {
            DalKind::NotFound => StoreError::NotFound { place, key: name },
            DalKind::AlreadyExists => StoreError::Exists { place, key: name },
            DalKind::ConditionNotMatch if action == "write" => StoreError::Exists { place, key: name },
            DalKind::ConditionNotMatch => StoreError::Changed { place, key: name },
            other => StoreError::Service {
                place,
                key: name,
                action,
                kind: map_error_kind(other),
                message: error.to_string(),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.guard.lock()
    }

    fn changed_error(&self, key: &ObjectKey) -> StoreError {
        StoreError::Changed { place: self.place.clone(), key: key.to_string() }
    }

    /// Writes under a condition that the service checks: an absent object, or one with this tag.
    fn write_conditional(
        &self,
        action: &'static str,
        key: &ObjectKey,
        bytes: &[u8],
        tag: Option<String>,
    ) -> Result<(), StoreError> {
        let operator = self.operator.clone();
        let path = key.to_string();
        let body = bytes.to_vec();
        let can_be_new = operator.info().capability().write_with_if_not_exists;
        let written = run_future(async move {
            let writing = operator.write_with(&path, body);
            match tag {
                Some(tag) => writing.if_match(&tag).await,
                None if can_be_new => writing.if_not_exists(true).await,
                None => writing.await,
            }
        })?;
        written.map(|_| ()).map_err(|e| self.wrap_dal_error(action, key.as_str(), &e))
    }

    fn has_object(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        match self.object_size(key) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The ref's bytes, and the tag by which the service knows them. A ref of more than `max` bytes was changed.
    fn read_tagged_ref(&self, key: &ObjectKey, max: usize) -> Result<Option<TaggedRef>, StoreError> {
        let operator = self.operator.clone();
        let path = key.to_string();
        // The tag is asked for first: a change in between makes the condition fail, never succeed wrongly.
        let answer = run_future(async move {
            let tag = operator.stat(&path).await?.etag().map(str::to_owned);
            Ok::<_, opendal::Error>(
                body::read_object_range(&operator, &path, .., max as u64).await?.map(|bytes| (bytes, tag)),
            )
        })?;
        match answer {
            Ok(Some(found)) => Ok(Some(found)),
            Ok(None) => Err(self.changed_error(key)),
            Err(error) if error.kind() == DalKind::NotFound => Ok(None),
            Err(error) => Err(self.wrap_dal_error("read", key.as_str(), &error)),
        }
    }

    fn replace_ref(&self, key: &ObjectKey, bytes: &[u8], tag: Option<String>) -> Result<(), StoreError> {
        if self.operator.info().capability().write_with_if_match && tag.is_some() {
            return self.write_conditional("change", key, bytes, tag);
        }
        let operator = self.operator.clone();
        let path = key.to_string();
        let body = bytes.to_vec();
        let written = run_future(async move { operator.write(&path, body).await })?;
        written.map(|_| ()).map_err(|e| self.wrap_dal_error("change", key.as_str(), &e))
    }

    fn list_entries(&self, folder: &str) -> Result<Vec<opendal::Entry>, StoreError> {
        let folder = key::check_folder(folder)?;
        let path = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let operator = self.operator.clone();
        let listed = run_future(async move { operator.list_with(&path).recursive(true).await })?;
        match listed {
            Ok(entries) => Ok(entries.into_iter().filter(|entry| entry.metadata().is_file()).collect()),
            Err(error) if error.kind() == DalKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.wrap_dal_error("list", folder, &error)),
        }
    }

    fn read_object_info(&self, entry: &opendal::Entry) -> Option<Result<ObjectInfo, StoreError>> {
        let key = ObjectKey::new(entry.path()).ok()?;
        let modified = entry.metadata().last_modified().map(Into::into);
        match entry.metadata().content_length() {
            // Some services list no lengths; an object of length zero is not worth the distinction.
            0 => match self.object_size(&key) {
                Ok(size) => Some(Ok(ObjectInfo { key, size, modified })),
                Err(error) if error.is_not_found() => None,
                Err(error) => Some(Err(error)),
            },
            size => Some(Ok(ObjectInfo { key, size, modified })),
        }
    }
}

impl ObjectStore for OpendalStore {
    fn describe_location(&self) -> String {
        self.place.clone()
    }

    fn get_object(&self, key: &ObjectKey, max: u64) -> Result<Vec<u8>, StoreError> {
        let operator = self.operator.clone();
        let path = key.to_string();
        match run_future(async move { body::read_object_range(&operator, &path, .., max).await })? {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => {
                let size = self.object_size(key)?.max(max.saturating_add(1));
                Err(StoreError::TooLarge { place: self.place.clone(), key: key.to_string(), size, max })
            }
            Err(error) => Err(self.wrap_dal_error("read", key.as_str(), &error)),
        }
    }

    fn get_range(&self, key: &ObjectKey, offset: u64, len: u64) -> Result<Vec<u8>, StoreError> {
        let length =
            |got| StoreError::Length { place: self.place.clone(), key: key.to_string(), wanted: len, got };
        let end = offset.checked_add(len).ok_or_else(|| length(0))?;
        let operator = self.operator.clone();
        let path = key.to_string();
        let bytes =
            match run_future(
                async move { body::read_object_range(&operator, &path, offset..end, len).await },
            )? {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Err(length(len.saturating_add(1))),
                Err(error) if error.kind() == DalKind::RangeNotSatisfied => Vec::new(),
                Err(error) => return Err(self.wrap_dal_error("read", key.as_str(), &error)),
            };
        let got = bytes.len() as u64;
        if got == len { Ok(bytes) } else { Err(length(got)) }
    }

    fn object_size(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        let operator = self.operator.clone();
        let path = key.to_string();
        let found = run_future(async move { operator.stat(&path).await })?;
        found.map(|meta| meta.content_length()).map_err(|e| self.wrap_dal_error("read", key.as_str(), &e))
    }

    fn put_object(&self, key: &ObjectKey, bytes: &[u8]) -> Result<(), StoreError> {
        let checked = self.operator.info().capability().write_with_if_not_exists;
        if checked && !self.in_turns {
            return self.write_conditional("write", key, bytes, None);
        }
        let _guard = self.lock();
        if !checked && self.has_object(key)? {
            return Err(StoreError::Exists { place: self.place.clone(), key: key.to_string() });
        }
        self.write_conditional("write", key, bytes, None)
    }

    fn swap_ref(
        &self,
        key: &ObjectKey,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<(), StoreError> {
        let _guard = self.lock();
        let current = self.read_tagged_ref(key, expected.map_or(0, <[u8]>::len))?;
        if current.as_ref().map(|(bytes, _)| bytes.as_slice()) != expected {
            return Err(self.changed_error(key));
        }
        match (current, new) {
            (None, None) => Ok(()),
            (Some(_), None) => self.delete_object(key),
            (Some((_, tag)), Some(bytes)) => self.replace_ref(key, bytes, tag),
            (None, Some(bytes)) => {
                self.write_conditional("write", key, bytes, None).map_err(|error| match error {
                    StoreError::Exists { .. } => self.changed_error(key),
                    other => other,
                })
            }
        }
    }

    fn list_objects(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let entries = self.list_entries(folder)?;
        let mut found: Vec<_> =
            entries.iter().filter_map(|entry| self.read_object_info(entry)).collect::<Result<_, _>>()?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        Ok(found)
    }

    fn list_keys(&self, folder: &str) -> Result<Vec<ObjectKey>, StoreError> {
        let entries = self.list_entries(folder)?;
        let mut keys: Vec<_> = entries.iter().filter_map(|entry| ObjectKey::new(entry.path()).ok()).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    fn delete_object(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let operator = self.operator.clone();
        let path = key.to_string();
        match run_future(async move { operator.delete(&path).await })? {
            Err(error) if error.kind() != DalKind::NotFound => {
                Err(self.wrap_dal_error("delete", key.as_str(), &error))
            }
            _ => Ok(()),
        }
    }

    fn parallel_get_count(&self) -> usize {
        PARALLEL_GETS
    }
}

fn map_error_kind(kind: DalKind) -> ErrorKind {
    match kind {
        DalKind::PermissionDenied => ErrorKind::Denied,
        DalKind::Unsupported => ErrorKind::Unsupported,
        DalKind::ConfigInvalid => ErrorKind::Usage,
        DalKind::Conflict => ErrorKind::Conflict,
        _ => ErrorKind::Io,
    }
}

fn wrap_address_error(place: &str, error: &opendal::Error) -> StoreError {
    StoreError::Address {
        url: place.to_owned(),
        reason: error.to_string(),
        kind: map_error_kind(error.kind()),
    }
}

/// Runs a future to its end on the private runtime, which is made when first needed.
fn run_future<F>(future: F) -> Result<F::Output, StoreError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let start = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(RUNTIME_THREADS).thread_name("vellum-store").enable_all().build().ok()
    };
    let lost = || StoreError::Service {
        place: "this process".to_owned(),
        key: "a request".to_owned(),
        action: "run",
        kind: ErrorKind::Io,
        message: "no thread to run it on".to_owned(),
    };
    let runtime = RUNTIME.get_or_init(start).as_ref().ok_or_else(lost)?;
    let (done, result) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _ = done.send(future.await);
    });
    result.recv().map_err(|_| lost())
}
