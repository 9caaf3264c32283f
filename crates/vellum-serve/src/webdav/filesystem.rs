//! The tree as `dav-server` asks for it. Whatever reads or writes it runs on a thread that may wait.

use std::fmt;
use std::io::SeekFrom;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, Bytes};
use dav_server::davpath::DavPath;
use dav_server::fs::{
    DavDirEntry, DavFile, DavFileSystem, DavMetaData, FsError, FsFuture, FsResult, FsStream, OpenOptions,
    ReadDirMeta,
};
use futures_util::stream;
use vellum_library::{File, SnapshotId, Worktree};

use super::metadata::{EntryMetadata, dav_error};
use super::upload::FileUpload;
use crate::content_blocks::ContentBlocks;
use crate::served_tree::ServedTree;

/// Entries that are read at once.
const PAGE: usize = 4096;

/// The tree, for one request.
#[derive(Clone)]
pub struct DavTree {
    tree: ServedTree,
    can_write: bool,
    has_failed: Arc<AtomicBool>,
}

impl DavTree {
    /// For a request; `has_failed` is set if a listing breaks off.
    #[must_use]
    pub fn new(tree: ServedTree, can_write: bool, has_failed: Arc<AtomicBool>) -> Self {
        Self { tree, can_write, has_failed }
    }

    fn writable(&self) -> FsResult<Worktree> {
        let worktree = self.tree.worktree().filter(|_| self.can_write);
        worktree.cloned().ok_or(FsError::Forbidden)
    }

    /// Changes the worktree, if it can be changed.
    async fn change(
        &self,
        change: impl FnOnce(&Worktree) -> vellum_library::Result<()> + Send + 'static,
    ) -> FsResult<()> {
        let worktree = self.writable()?;
        run_blocking(move || change(&worktree).map_err(|error| dav_error(&error))).await
    }
}

/// Runs it on a thread that may wait.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> FsResult<T> + Send + 'static,
) -> FsResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| FsError::GeneralFailure)?
}

/// Makes an empty file: what a LOCK of a free name does, which clients send before they upload.
fn reserve_name(worktree: &Worktree, path: &Path, options: &OpenOptions) -> FsResult<File> {
    let new = vellum_library::OpenOptions::new().read(true).write(true);
    let new = new.create(options.create).create_new(options.create_new);
    worktree.open_with(path, new).map_err(|error| dav_error(&error))
}

fn relative(path: &DavPath) -> PathBuf {
    path.as_rel_ospath().to_path_buf()
}

impl DavFileSystem for DavTree {
    fn open<'a>(&'a self, path: &'a DavPath, options: OpenOptions) -> FsFuture<'a, Box<dyn DavFile>> {
        let path = relative(path);
        Box::pin(async move {
            if options.write || options.append || options.create || options.truncate {
                let worktree = self.writable()?;
                if !options.truncate && !options.append {
                    let reserve = move || reserve_name(&worktree, &path, &options);
                    let file = Arc::new(run_blocking(reserve).await?);
                    return Ok(Box::new(OpenedFile::new(file, None)) as Box<dyn DavFile>);
                }
                let upload = run_blocking(move || FileUpload::begin(worktree, path, &options)).await?;
                return Ok(Box::new(upload) as Box<dyn DavFile>);
            }
            let tree = self.tree.clone();
            let snapshot = tree.snapshot_id();
            let open = move || tree.open(&path).map_err(|error| dav_error(&error));
            let file = Arc::new(run_blocking(open).await?);
            Ok(Box::new(OpenedFile::new(file, snapshot)) as Box<dyn DavFile>)
        })
    }

    fn read_dir<'a>(
        &'a self,
        path: &'a DavPath,
        _meta: ReadDirMeta,
    ) -> FsFuture<'a, FsStream<Box<dyn DavDirEntry>>> {
        let listing = DirListing {
            tree: self.tree.clone(),
            path: relative(path),
            after: None,
            page: Vec::new().into_iter(),
            more: true,
        };
        let has_failed = self.has_failed.clone();
        Box::pin(async move {
            // The first page here, so that what is no directory is answered by a status.
            let listing =
                listing.with_next_page().await.inspect_err(|_| has_failed.store(true, Ordering::Release))?;
            let entries = stream::try_unfold(listing, move |mut listing| {
                let has_failed = has_failed.clone();
                async move {
                    if listing.page.len() == 0 && listing.more {
                        let next = listing.with_next_page().await;
                        listing = next.inspect_err(|_| has_failed.store(true, Ordering::Release))?;
                    }
                    Ok(listing.page.next().map(|entry| (Box::new(entry) as Box<dyn DavDirEntry>, listing)))
                }
            });
            Ok(Box::pin(entries) as FsStream<Box<dyn DavDirEntry>>)
        })
    }

    fn metadata<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, Box<dyn DavMetaData>> {
        let path = relative(path);
        let tree = self.tree.clone();
        Box::pin(run_blocking(move || {
            let found = tree.stat(&path).map_err(|error| dav_error(&error))?;
            Ok(Box::new(EntryMetadata::new(found, tree.snapshot_id())) as Box<dyn DavMetaData>)
        }))
    }

    fn symlink_metadata<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, Box<dyn DavMetaData>> {
        let path = relative(path);
        let tree = self.tree.clone();
        Box::pin(run_blocking(move || {
            let found = tree.lstat(&path).map_err(|error| dav_error(&error))?;
            Ok(Box::new(EntryMetadata::new(found, tree.snapshot_id())) as Box<dyn DavMetaData>)
        }))
    }

    fn create_dir<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, ()> {
        let path = relative(path);
        Box::pin(self.change(move |worktree| worktree.mkdir(&path)))
    }

    fn remove_dir<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, ()> {
        let path = relative(path);
        Box::pin(self.change(move |worktree| worktree.remove(&path)))
    }

    fn remove_file<'a>(&'a self, path: &'a DavPath) -> FsFuture<'a, ()> {
        let path = relative(path);
        Box::pin(self.change(move |worktree| worktree.remove(&path)))
    }

    fn rename<'a>(&'a self, from: &'a DavPath, to: &'a DavPath) -> FsFuture<'a, ()> {
        let from = relative(from);
        let to = relative(to);
        Box::pin(self.change(move |worktree| worktree.rename(&from, &to)))
    }

    fn copy<'a>(&'a self, from: &'a DavPath, to: &'a DavPath) -> FsFuture<'a, ()> {
        let from = relative(from);
        let to = relative(to);
        // The content is shared, however long it is.
        Box::pin(self.change(move |worktree| worktree.copy(&from, &to).map(drop)))
    }
}

/// A directory that is read by and by.
struct DirListing {
    tree: ServedTree,
    path: PathBuf,
    after: Option<Vec<u8>>,
    page: std::vec::IntoIter<ListedEntry>,
    more: bool,
}

impl DirListing {
    /// Reads on, if there is more.
    async fn with_next_page(self) -> FsResult<Self> {
        run_blocking(move || {
            let read = self.tree.read_dir_page(&self.path, self.after.as_deref(), PAGE);
            let page = read.map_err(|error| dav_error(&error))?;
            let snapshot = self.tree.snapshot_id();
            let after = page.entries.last().map(|entry| entry.name.as_bytes().to_vec());
            // In a worktree all entries of a page may have vanished meanwhile; then there is nothing to go on from.
            let more = page.more && after.is_some();
            let entries = page.entries.into_iter().map(|entry| ListedEntry {
                name: entry.name.as_bytes().to_vec(),
                metadata: EntryMetadata::new(entry.metadata, snapshot),
            });
            let entries: Vec<_> = entries.collect();
            Ok(Self { after, page: entries.into_iter(), more, ..self })
        })
        .await
    }
}

/// An entry of a directory.
struct ListedEntry {
    name: Vec<u8>,
    metadata: EntryMetadata,
}

impl DavDirEntry for ListedEntry {
    fn name(&self) -> Vec<u8> {
        self.name.clone()
    }

    fn metadata(&'_ self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        Box::pin(std::future::ready(Ok(Box::new(self.metadata.clone()) as Box<dyn DavMetaData>)))
    }
}

/// A file that is read.
struct OpenedFile {
    file: Arc<File>,
    /// From the position on. Where the range ends that is asked for is not said.
    blocks: ContentBlocks,
    /// What was read and not asked for yet.
    rest: Bytes,
    snapshot: Option<SnapshotId>,
}

impl OpenedFile {
    fn new(file: Arc<File>, snapshot: Option<SnapshotId>) -> Self {
        let blocks = ContentBlocks::new(file.clone(), 0, u64::MAX);
        Self { file, blocks, rest: Bytes::new(), snapshot }
    }
}

impl fmt::Debug for OpenedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedFile").finish_non_exhaustive()
    }
}

impl DavFile for OpenedFile {
    fn metadata(&'_ mut self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        let file = self.file.clone();
        let snapshot = self.snapshot;
        Box::pin(run_blocking(move || {
            let found = file.stat().map_err(|error| dav_error(&error))?;
            Ok(Box::new(EntryMetadata::new(found, snapshot)) as Box<dyn DavMetaData>)
        }))
    }

    fn write_buf(&'_ mut self, _buf: Box<dyn Buf + Send>) -> FsFuture<'_, ()> {
        Box::pin(std::future::ready(Err(FsError::Forbidden)))
    }

    fn write_bytes(&'_ mut self, _buf: Bytes) -> FsFuture<'_, ()> {
        Box::pin(std::future::ready(Err(FsError::Forbidden)))
    }

    fn read_bytes(&'_ mut self, count: usize) -> FsFuture<'_, Bytes> {
        Box::pin(async move {
            // `dav-server` asks for bytes that the file had when its length was sent, and would send zeros in their place: the
            // end of the file is a failure here.
            if self.rest.is_empty() {
                let block = self.blocks.next_block().await.map_err(|_| FsError::GeneralFailure)?;
                self.rest = block.ok_or(FsError::GeneralFailure)?;
            }
            let count = count.min(self.rest.len());
            Ok(self.rest.split_to(count))
        })
    }

    fn seek(&'_ mut self, to: SeekFrom) -> FsFuture<'_, u64> {
        let position = match to {
            SeekFrom::Start(position) => Ok(position),
            SeekFrom::Current(_) | SeekFrom::End(_) => Err(FsError::NotImplemented),
        };
        if let Ok(position) = position {
            self.blocks = ContentBlocks::new(self.file.clone(), position, u64::MAX);
            self.rest = Bytes::new();
        }
        Box::pin(std::future::ready(position))
    }

    fn flush(&'_ mut self) -> FsFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
