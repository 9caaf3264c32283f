//! Uploads: a file without a name, which gets its name when all of it has arrived. One that breaks off is never seen.

use std::fmt;
use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use dav_server::fs::{DavFile, DavMetaData, FsError, FsFuture, FsResult, OpenOptions};
use vellum_library::{File, Tree as _, Worktree};

use super::filesystem::run_blocking;
use super::metadata::{EntryMetadata, dav_error};
use crate::received_file::{MODE, replace_file, write_fully};

/// A file that is being written.
pub struct FileUpload {
    place: Arc<UploadPlace>,
    written: u64,
    expected: Option<u64>,
}

/// Where it goes.
struct UploadPlace {
    worktree: Worktree,
    path: PathBuf,
    file: File,
    mode: u32,
    must_be_new: bool,
}

impl FileUpload {
    /// Begins to write a whole file.
    pub fn begin(worktree: Worktree, path: PathBuf, options: &OpenOptions) -> FsResult<Self> {
        // A part of a file would have to be written in place.
        if options.append || !options.truncate {
            return Err(FsError::NotImplemented);
        }
        let existing = match worktree.lstat(&path) {
            Ok(found) => Some(found),
            Err(error) if dav_error(&error) == FsError::NotFound => None,
            Err(error) => return Err(dav_error(&error)),
        };
        let mode = match &existing {
            Some(_) if options.create_new => return Err(FsError::Exists),
            Some(found) if found.is_dir() => return Err(FsError::Forbidden),
            None if !options.create && !options.create_new => return Err(FsError::NotFound),
            Some(found) if found.is_file() => found.mode() & 0o7777,
            Some(_) | None => MODE,
        };
        let dir = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let file = worktree.temp_file(&dir).map_err(|error| dav_error(&error))?;
        let place = UploadPlace { worktree, path, file, mode, must_be_new: options.create_new };
        Ok(Self { place: Arc::new(place), written: 0, expected: options.size })
    }

    async fn write(&mut self, data: Bytes) -> FsResult<()> {
        let place = self.place.clone();
        let position = self.written;
        self.written += data.len() as u64;
        run_blocking(move || {
            match write_fully(&place.file, &data, position).map_err(|error| dav_error(&error))? {
                true => Ok(()),
                false => Err(FsError::TooLarge),
            }
        })
        .await
    }
}

impl UploadPlace {
    /// Names the file, which has its permissions before.
    fn name_file(&self) -> vellum_library::Result<()> {
        self.file.set_mode(self.mode)?;
        match self.must_be_new {
            true => self.file.persist(self.worktree.root(), &self.path),
            false => replace_file(&self.worktree, &self.path, &self.file),
        }
    }
}

impl fmt::Debug for FileUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileUpload").field("written", &self.written).finish_non_exhaustive()
    }
}

impl DavFile for FileUpload {
    fn metadata(&'_ mut self) -> FsFuture<'_, Box<dyn DavMetaData>> {
        let place = self.place.clone();
        Box::pin(run_blocking(move || {
            let found = place.file.stat().map_err(|error| dav_error(&error))?;
            Ok(Box::new(EntryMetadata::new(found, None)) as Box<dyn DavMetaData>)
        }))
    }

    fn write_buf(&'_ mut self, mut buf: Box<dyn Buf + Send>) -> FsFuture<'_, ()> {
        let data = buf.copy_to_bytes(buf.remaining());
        Box::pin(self.write(data))
    }

    fn write_bytes(&'_ mut self, buf: Bytes) -> FsFuture<'_, ()> {
        Box::pin(self.write(buf))
    }

    fn read_bytes(&'_ mut self, _count: usize) -> FsFuture<'_, Bytes> {
        Box::pin(std::future::ready(Err(FsError::Forbidden)))
    }

    fn seek(&'_ mut self, _to: SeekFrom) -> FsFuture<'_, u64> {
        Box::pin(std::future::ready(Err(FsError::NotImplemented)))
    }

    /// Called once, after the last byte.
    fn flush(&'_ mut self) -> FsFuture<'_, ()> {
        let place = self.place.clone();
        let is_whole = self.expected.is_none_or(|expected| expected == self.written);
        Box::pin(run_blocking(move || {
            // `dav-server` compares the lengths only afterwards.
            if !is_whole {
                return Err(FsError::GeneralFailure);
            }
            place.name_file().map_err(|error| dav_error(&error))
        }))
    }
}
