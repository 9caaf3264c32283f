//! Many requests of one kind, several under way at once.
//!
//! Invariant: results have the order of what was asked for. A directory is read by one thread, since its requests do
//! not wait.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{FetchPolicy, ObjectKey, ObjectStore, RequestPurpose};
use crate::error::StoreError;

/// Makes two requests, at once if the store is worth it, and returns both answers.
pub fn join_requests<A: Send, B: Send>(
    objects: &dyn ObjectStore,
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    match objects.parallel_get_count() {
        0 | 1 => (one(), other()),
        _ => join_work(one, other),
    }
}

/// Does two things at once. Requests of both are for what this thread works for.
pub fn join_work<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    // Both belong to a thread, so that the new one has to be given them.
    let purpose = RequestPurpose::current();
    let policy = FetchPolicy::current();
    std::thread::scope(|scope| {
        let begun = scope.spawn(move || {
            purpose.set_for_thread();
            let _policy = policy.enter();
            one()
        });
        let second = other();
        match begun.join() {
            Ok(first) => (first, second),
            // As if it had been called here.
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Makes a request for each item, as many at once as the store is worth; see [`ObjectStore::parallel_get_count`].
pub fn map_requests<T: Sync, R: Send>(
    objects: &dyn ObjectStore,
    items: &[T],
    request: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let threads = objects.parallel_get_count().min(items.len());
    if threads <= 1 {
        return items.iter().map(request).collect();
    }
    let queue = Mutex::new(items.iter().enumerate());
    // A closure, so that the lock ends before the request begins: the scrutinee of a `while let` keeps its guard
    // until the end of the body.
    let next = || queue.lock().next();
    // Answers arrive in any order. Sorted by number they are in the order of the items.
    let done = Mutex::new(BTreeMap::new());
    let purpose = RequestPurpose::current();
    let policy = FetchPolicy::current();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                purpose.set_for_thread();
                let _policy = policy.enter();
                while let Some((number, item)) = next() {
                    let answer = request(item);
                    done.lock().insert(number, answer);
                }
            });
        }
    });
    done.into_inner().into_values().collect()
}

/// Stores objects in the order that [`ObjectStore::put_objects`] promises: neighbours in one folder at once, where waiting
/// for answers dominates.
pub(super) fn put_by_folder(
    objects: &dyn ObjectStore,
    list: &[(ObjectKey, &[u8])],
) -> Result<(), StoreError> {
    let folder = |key: &ObjectKey| key.as_str().split_once('/').map(|(folder, _)| folder.to_owned());
    // An object at the top is in no folder.
    let is_together =
        |one: &ObjectKey, other: &ObjectKey| folder(one).is_some() && folder(one) == folder(other);
    list.chunk_by(|(one, _), (other, _)| is_together(one, other)).try_for_each(|neighbours| {
        map_requests(objects, neighbours, |(key, bytes)| objects.put_object(key, bytes)).into_iter().collect()
    })
}
