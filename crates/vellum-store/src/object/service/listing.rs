//! Listings of a service, page by page.
//!
//! Invariant: a page is not kept whole, and an attempt that fails does not make the pages before it in vain, where the
//! service can begin a listing behind a key.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use opendal::{Entry, Operator};
use parking_lot::Mutex;

use super::super::{KeyFilter, ObjectInfo, ObjectKey, ObjectSelection, ObjectVersion};

/// What was listed so far, in all attempts.
pub(super) struct ListingProgress {
    is_wanted: KeyFilter,
    /// The length of objects that stand for deleted refs, if the store uses such.
    marker_len: Option<u64>,
    selection: ObjectSelection,
    /// The last name that was listed.
    last: Option<String>,
}

impl ListingProgress {
    /// Nothing was listed yet.
    pub fn new(is_wanted: KeyFilter, marker_len: Option<u64>) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            is_wanted,
            marker_len,
            selection: ObjectSelection::default(),
            last: None,
        }))
    }

    /// What was listed, sorted by key.
    pub fn take_selection(&mut self) -> ObjectSelection {
        let mut selection = std::mem::take(&mut self.selection);
        selection.objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        // A listing comes in pages, and may repeat a key if objects come and go meanwhile.
        selection.objects.dedup_by(|a, b| a.key == b.key);
        selection
    }

    fn add_entry(&mut self, entry: &Entry) {
        let metadata = entry.metadata();
        self.last = Some(entry.path().to_owned());
        let size = metadata.content_length();
        // OpenDAL lists folders, too. A listing has no bytes, so markers are recognised by their length. No object of a
        // volume has the same.
        if !metadata.is_file() || self.marker_len == Some(size) {
            return;
        }
        match ObjectKey::new(entry.path()) {
            Ok(key) => {
                let modified = metadata.last_modified().map(Into::into);
                let version = metadata.etag().map(|tag| ObjectVersion::Tag(tag.to_owned()));
                self.selection.add_object(ObjectInfo { key, size, modified, version }, self.is_wanted);
            }
            Err(_) => self.selection.others.add_name(entry.path()),
        }
    }
}

/// Lists a folder, which ends with a slash unless it is the root; goes on where an attempt before has ended.
pub(super) async fn list_pages(
    operator: &Operator,
    folder: &str,
    progress: &Mutex<ListingProgress>,
) -> opendal::Result<()> {
    let after = {
        let mut progress = progress.lock();
        if !operator.info().capability().list_with_start_after {
            // This listing begins anew, and would count everything before the failure twice.
            progress.selection = ObjectSelection::default();
            progress.last = None;
        }
        progress.last.clone()
    };
    let mut request = operator.lister_with(folder).recursive(true);
    if let Some(after) = &after {
        request = request.start_after(after);
    }
    let mut listed = request.await?;
    while let Some(entry) = poll_fn(|context| Pin::new(&mut listed).poll_next(context)).await {
        let entry = entry?;
        progress.lock().add_entry(&entry);
    }
    Ok(())
}
