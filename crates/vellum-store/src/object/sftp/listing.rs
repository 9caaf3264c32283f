//! Listings: all folders of one depth at once.
//!
//! Invariant: memory is bounded by what is found; names that are no part of a key are left out, and so is what lies deeper
//! than any key.

use super::channel::SftpChannel;
use super::wire::{NamedFile, SftpReply, SftpRequest, StatusCode};
use super::{SftpFailure, SftpResult, SftpStore};
use crate::object::key::{DEPTH_MAX, is_key_component};
use crate::object::{ObjectInfo, ObjectKey};

/// Folders that are read at once, a count: servers allow some hundred open handles.
const FOLDERS_AT_ONCE: usize = 32;

impl SftpStore {
    /// All objects in a folder and below, in no order.
    pub(super) fn list_on(&self, channel: &SftpChannel, folder: &str) -> SftpResult<Vec<ObjectInfo>> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        for _ in 0..DEPTH_MAX {
            let mut deeper = Vec::new();
            for group in folders.chunks(FOLDERS_AT_ONCE) {
                let paths: Vec<_> = group.iter().map(|folder| self.server_path(folder)).collect();
                for (folder, files) in group.iter().zip(read_dirs(channel, &paths)?) {
                    // A folder that is missing, or was removed since its parent was read, counts as empty.
                    for file in files.unwrap_or_default() {
                        sort_file(folder, &file, &mut found, &mut deeper);
                    }
                }
            }
            if deeper.is_empty() {
                break;
            }
            folders = deeper;
        }
        Ok(found)
    }
}

/// Puts a file of a folder where it belongs.
fn sort_file(folder: &str, file: &NamedFile, found: &mut Vec<ObjectInfo>, deeper: &mut Vec<String>) {
    // This also leaves out `.`, `..` and the store's own files, which begin with a dot.
    if !is_key_component(&file.name) {
        return;
    }
    let Ok(name) = std::str::from_utf8(&file.name) else { return };
    let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    if file.attributes.is_dir() {
        deeper.push(path);
    } else if file.attributes.is_file()
        && let Ok(key) = ObjectKey::new(path)
    {
        let size = file.attributes.size.unwrap_or_default();
        found.push(ObjectInfo { key, size, modified: file.attributes.modified, version: None });
    }
}

/// The files of several directories; none for one that is missing.
pub(super) fn read_dirs(channel: &SftpChannel, paths: &[String]) -> SftpResult<Vec<Option<Vec<NamedFile>>>> {
    // All requests are sent before the first answer is awaited, so a level of folders takes one round trip for each
    // step.
    let opening = paths.iter().map(|path| channel.send(SftpRequest::OpenDir(path)));
    let opening = opening.collect::<Result<Vec<_>, _>>()?;
    let mut handles = Vec::with_capacity(paths.len());
    for ticket in opening {
        handles.push(match ticket.wait()? {
            SftpReply::Handle(handle) => Ok(handle),
            reply => Err(SftpFailure::from_reply(reply)),
        });
    }
    let read = read_handles(channel, &handles);
    for handle in handles.iter().flatten() {
        // Closing a directory can report nothing of use.
        let _ = channel.send(SftpRequest::Close(handle));
    }
    let mut read = read?.into_iter();
    handles
        .into_iter()
        .map(|handle| match handle {
            Ok(_) => Ok(read.next()),
            Err(SftpFailure::Missing) => Ok(None),
            Err(failure) => Err(failure),
        })
        .collect()
}

/// Reads open directories to their ends.
fn read_handles(channel: &SftpChannel, handles: &[SftpResult<Vec<u8>>]) -> SftpResult<Vec<Vec<NamedFile>>> {
    let open: Vec<_> = handles.iter().flatten().collect();
    let mut read: Vec<Vec<NamedFile>> = open.iter().map(|_| Vec::new()).collect();
    let mut unfinished: Vec<usize> = (0..open.len()).collect();
    while !unfinished.is_empty() {
        let asked = unfinished.iter().filter_map(|number| open.get(*number));
        let asked = asked.map(|handle| channel.send(SftpRequest::ReadDir(handle)));
        let asked = asked.collect::<Result<Vec<_>, _>>()?;
        let mut more = Vec::new();
        for (number, ticket) in unfinished.into_iter().zip(asked) {
            match ticket.wait()? {
                // A server that never comes to the end would be asked for ever.
                SftpReply::Names(names) if names.is_empty() => {
                    return Err(SftpFailure::from_reply(SftpReply::Names(names)));
                }
                SftpReply::Names(mut names) => {
                    read.get_mut(number).into_iter().for_each(|files| files.append(&mut names));
                    more.push(number);
                }
                SftpReply::Status { code: StatusCode::EndOfFile, .. } => {}
                reply => return Err(SftpFailure::from_reply(reply)),
            }
        }
        unfinished = more;
    }
    Ok(read)
}
