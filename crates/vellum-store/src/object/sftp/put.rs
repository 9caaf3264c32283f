//! New objects: written under a random name, made durable, then named.
//!
//! Invariant: what is killed or cut leaves a file in the folder `.tmp`, and nothing else. Such files are removed when they
//! are a day old by the server's clock. Deliberately absent: durability of a directory's own entries, for which SFTP has
//! no request; making the file durable again once it has its name makes filesystems with a journal write that, too.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vellum_types::ErrorKind;

use super::channel::{SftpChannel, SftpTicket};
use super::files::{self, PIECE, PIECES_AT_ONCE};
use super::listing;
use super::wire::{SftpReply, SftpRequest};
use super::{SftpFailure, SftpResult, SftpStore, expect_done};
use crate::object::ObjectKey;

/// The folder of files that are being written, as in stores in directories of this machine.
const TEMPORARY: &str = ".tmp";
/// Files of writers that died are removed when they are this old: longer than any write takes.
const LEFTOVER_AGE: Duration = Duration::from_hours(24);

impl SftpStore {
    /// Stores an object; false if its key is taken. If an earlier try may have stored it, it is compared.
    pub(super) fn put_on(
        &self,
        channel: &SftpChannel,
        key: &ObjectKey,
        bytes: &[u8],
        is_uncertain: bool,
    ) -> SftpResult<bool> {
        let random = getrandom::u64().map_err(|error| SftpFailure::Refused {
            kind: ErrorKind::Io,
            message: format!("no random numbers: {error}"),
        })?;
        let temporary = self.server_path(&format!("{TEMPORARY}/{random:016x}"));
        let handle = self.create_temporary(channel, &temporary)?;
        let named = write_file(channel, &handle, bytes)
            .and_then(|()| sync_file(channel, &handle))
            .and_then(|()| self.name_file(channel, &temporary, key))
            .and_then(|is_new| {
                // SFTP cannot sync a directory. Syncing the file once more, now that it has its name, makes
                // filesystems with a journal write the name.
                if is_new {
                    sync_file(channel, &handle)?;
                }
                Ok(is_new)
            });
        // A file that cannot be removed now is removed later; the answers contain nothing that is needed.
        let _ = channel.send(SftpRequest::Close(&handle));
        let _ = channel.send(SftpRequest::Remove(&temporary));
        let is_new = named?;
        // Once for each opened store, and by those that write: a store that is only read is not changed.
        if is_new && !self.has_swept.swap(true, Ordering::Relaxed) {
            self.remove_leftovers(channel);
        }
        if is_new || !is_uncertain {
            return Ok(is_new);
        }
        // An earlier try may have named its file before the connection was cut. The bytes show whether the name is
        // taken by it.
        let path = self.server_path(key.as_str());
        match files::read_file(channel, &path, bytes.len() as u64) {
            Ok(there) => Ok(there == bytes),
            Err(SftpFailure::TooLarge(_) | SftpFailure::NotAFile) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn create_temporary(&self, channel: &SftpChannel, path: &str) -> SftpResult<Vec<u8>> {
        match channel.ask(SftpRequest::OpenNew(path))? {
            SftpReply::Handle(handle) => Ok(handle),
            reply => match SftpFailure::from_reply(reply) {
                SftpFailure::Missing => self.create_after_folders(channel, path),
                failure => Err(failure),
            },
        }
    }

    /// Makes the store's own folders first.
    fn create_after_folders(&self, channel: &SftpChannel, path: &str) -> SftpResult<Vec<u8>> {
        // The folder is missing at the first write of a store only.
        self.make_root(channel)?;
        make_folder(channel, &self.server_path(TEMPORARY), true)?;
        match channel.ask(SftpRequest::OpenNew(path))? {
            SftpReply::Handle(handle) => Ok(handle),
            reply => Err(SftpFailure::from_reply(reply)),
        }
    }

    /// Makes the store's directory, and those above it that are missing.
    fn make_root(&self, channel: &SftpChannel) -> SftpResult<()> {
        let root = self.server_path("");
        let ends = root.char_indices().filter(|(at, char)| *char == '/' && *at > 0).map(|(at, _)| at);
        for end in ends.chain([root.len()]) {
            let path = root.get(..end).unwrap_or_default();
            if path != "/" && files::find_attributes(channel, path)?.is_none() {
                make_folder(channel, path, true)?;
            }
        }
        Ok(())
    }

    /// Gives a file its name. Returns false if the name is taken.
    fn name_file(&self, channel: &SftpChannel, from: &str, key: &ObjectKey) -> SftpResult<bool> {
        let to = self.server_path(key.as_str());
        let mut has_made_folders = false;
        loop {
            let request = if channel.can_link {
                SftpRequest::Link { from, to: &to }
            } else {
                // Servers without links refuse to rename to a name that is taken.
                SftpRequest::Rename { from, to: &to }
            };
            let failure = match expect_done(channel.ask(request)?) {
                Ok(()) => return Ok(true),
                Err(failure) => failure,
            };
            match failure {
                SftpFailure::Missing if !has_made_folders => {
                    self.make_folders(channel, key)?;
                    has_made_folders = true;
                }
                SftpFailure::Connection(_) => return Err(failure),
                // SFTP version 3 has no status for a name that is taken: servers answer with the general failure.
                failure => {
                    return match files::find_attributes(channel, &to)? {
                        Some(_) => Ok(false),
                        None => Err(failure),
                    };
                }
            }
        }
    }

    /// Makes the folders of a key.
    fn make_folders(&self, channel: &SftpChannel, key: &ObjectKey) -> SftpResult<()> {
        let folder = key.folder();
        let ends = folder.match_indices('/').map(|(at, _)| at).chain([folder.len()]);
        for end in ends.filter(|end| *end > 0) {
            // With the usual permissions: who comes here at all is decided by those of the root.
            make_folder(channel, &self.server_path(folder.get(..end).unwrap_or_default()), false)?;
        }
        Ok(())
    }

    /// Removes what writers that died have left. Failures are left for the next time: nothing depends on it.
    fn remove_leftovers(&self, channel: &SftpChannel) {
        let folder = self.server_path(TEMPORARY);
        let Ok(Some(files)) = listing::read_dirs(channel, &[folder]).map(|mut read| read.pop().flatten())
        else {
            return;
        };
        // The newest file tells the server's time, from which this machine's clock may differ.
        let newest = files.iter().filter_map(|file| file.attributes.modified).max();
        for file in files.iter().filter(|file| file.attributes.is_file()) {
            let age = newest.zip(file.attributes.modified);
            let is_old = age
                .and_then(|(newest, then)| newest.duration_since(then).ok())
                .is_some_and(|age| age > LEFTOVER_AGE);
            if let (true, Ok(name)) = (is_old, std::str::from_utf8(&file.name)) {
                let _ = channel.send(SftpRequest::Remove(&self.server_path(&format!("{TEMPORARY}/{name}"))));
            }
        }
    }
}

/// Makes a folder, unless it is there.
fn make_folder(channel: &SftpChannel, path: &str, is_private: bool) -> SftpResult<()> {
    match expect_done(channel.ask(SftpRequest::MakeDir { path, is_private })?) {
        Ok(()) => Ok(()),
        Err(failure @ SftpFailure::Connection(_)) => Err(failure),
        // Servers answer with the general failure if the folder exists, too.
        Err(failure) => match files::find_attributes(channel, path)? {
            Some(attributes) if attributes.is_dir() => Ok(()),
            Some(_) | None => Err(failure),
        },
    }
}

/// Writes a new file, in pieces.
fn write_file(channel: &SftpChannel, handle: &[u8], bytes: &[u8]) -> SftpResult<()> {
    let mut under_way: VecDeque<SftpTicket<'_>> = VecDeque::new();
    let mut offset = 0;
    for piece in bytes.chunks(PIECE as usize) {
        // The oldest is waited for: a bounded number is under way, and the connection is never idle.
        if under_way.len() >= PIECES_AT_ONCE
            && let Some(oldest) = under_way.pop_front()
        {
            expect_done(oldest.wait()?)?;
        }
        under_way.push_back(channel.send(SftpRequest::Write { handle, offset, bytes: piece })?);
        offset += piece.len() as u64;
    }
    under_way.into_iter().try_for_each(|ticket| expect_done(ticket.wait()?))
}

/// Makes a file durable, where the server can.
fn sync_file(channel: &SftpChannel, handle: &[u8]) -> SftpResult<()> {
    if channel.can_sync { expect_done(channel.ask(SftpRequest::Sync(handle))?) } else { Ok(()) }
}
