//! The messages of SFTP, version 3, as far as a store needs them.
//!
//! Invariant: any bytes are accepted as an answer: they are decoded, or refused. Nothing is believed about lengths: what is
//! read is in the message.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest message that is accepted, bytes: OpenSSH sends 256 KiB at most.
pub(super) const MESSAGE_MAX: usize = 512 << 10;
/// The version that is spoken.
const VERSION: u32 = 3;

const INIT: u8 = 1;
const VERSION_REPLY: u8 = 2;
const OPEN: u8 = 3;
const CLOSE: u8 = 4;
const READ: u8 = 5;
const WRITE: u8 = 6;
const LSTAT: u8 = 7;
const FSTAT: u8 = 8;
const OPENDIR: u8 = 11;
const READDIR: u8 = 12;
const REMOVE: u8 = 13;
const MKDIR: u8 = 14;
const RENAME: u8 = 18;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED: u8 = 200;

/// Flags of an open: for reading; or for writing, as a new file.
const OPEN_READ: u32 = 0x01;
const OPEN_NEW: u32 = 0x02 | 0x08 | 0x20;

/// Fields of attributes.
const HAS_SIZE: u32 = 0x01;
const HAS_OWNER: u32 = 0x02;
const HAS_MODE: u32 = 0x04;
const HAS_TIMES: u32 = 0x08;
const HAS_EXTENDED: u32 = 0x8000_0000;

/// The kind of a file within its mode.
const KIND_MASK: u32 = 0o170_000;
const KIND_DIR: u32 = 0o040_000;
const KIND_FILE: u32 = 0o100_000;

/// The extension that makes a file durable.
pub(super) const FSYNC: &str = "fsync@openssh.com";
/// The extension that makes a hard link, and fails if the name is taken.
pub(super) const HARDLINK: &str = "hardlink@openssh.com";

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) enum SftpRequest<'a> {
    OpenForReading(&'a str),
    OpenNew(&'a str),
    Close(&'a [u8]),
    Read {
        handle: &'a [u8],
        offset: u64,
        len: u32,
    },
    Write {
        handle: &'a [u8],
        offset: u64,
        bytes: &'a [u8],
    },
    Stat(&'a str),
    StatHandle(&'a [u8]),
    OpenDir(&'a str),
    ReadDir(&'a [u8]),
    Remove(&'a str),
    /// Makes a directory that only its owner can use, or one with the usual permissions.
    MakeDir {
        path: &'a str,
        is_private: bool,
    },
    Rename {
        from: &'a str,
        to: &'a str,
    },
    Link {
        from: &'a str,
        to: &'a str,
    },
    Sync(&'a [u8]),
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SftpReply {
    Status { code: StatusCode, message: String },
    Handle(Vec<u8>),
    Data(Vec<u8>),
    Names(Vec<NamedFile>),
    Attributes(FileAttributes),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatusCode {
    Done,
    EndOfFile,
    Missing,
    Denied,
    Unsupported,
    /// Whatever else, by its number.
    Failed(u32),
}

/// The attributes of a file, as far as the server sends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FileAttributes {
    pub size: Option<u64>,
    mode: Option<u32>,
    pub modified: Option<SystemTime>,
}

/// A file in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedFile {
    pub name: Vec<u8>,
    pub attributes: FileAttributes,
}

/// An answer that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedReply;

impl FileAttributes {
    pub fn is_file(&self) -> bool {
        self.mode.is_some_and(|mode| mode & KIND_MASK == KIND_FILE)
    }

    pub fn is_dir(&self) -> bool {
        self.mode.is_some_and(|mode| mode & KIND_MASK == KIND_DIR)
    }
}

/// The first message, with its length.
pub(super) fn encode_init() -> Vec<u8> {
    let mut body = vec![INIT];
    body.extend(VERSION.to_be_bytes());
    prepend_len(&body)
}

/// The names of the server's extensions, if the message is its first one.
pub(super) fn decode_version(message: &[u8]) -> Result<Vec<String>, MalformedReply> {
    let mut fields = SftpFields(message);
    // A server answers with the lower of both versions. Earlier versions have neither extensions nor texts in their
    // statuses.
    if fields.read_u8()? != VERSION_REPLY || fields.read_u32()? < VERSION {
        // The connection is given up: with a version that was not agreed on, no later message could be trusted.
        return Err(MalformedReply);
    }
    let mut extensions = Vec::new();
    // Names and values alternate to the end of the message; there is no count. The values are versions, which nobody
    // needs.
    while !fields.0.is_empty() {
        extensions.push(String::from_utf8_lossy(fields.read_string()?).into_owned());
        fields.read_string()?;
    }
    Ok(extensions)
}

impl SftpRequest<'_> {
    /// The message, with its length.
    pub fn encode(&self, id: u32) -> Vec<u8> {
        let kind = self.kind();
        let mut body = vec![kind];
        body.extend(id.to_be_bytes());
        match *self {
            Self::OpenForReading(path) => {
                put_string(&mut body, path.as_bytes());
                body.extend(OPEN_READ.to_be_bytes());
                // The message has attributes also where nothing is created; these are none.
                body.extend(0_u32.to_be_bytes());
            }
            Self::OpenNew(path) => {
                put_string(&mut body, path.as_bytes());
                body.extend(OPEN_NEW.to_be_bytes());
                // No attributes: the mode of a new file is the server's, as its owner has set it up.
                body.extend(0_u32.to_be_bytes());
            }
            Self::Close(handle) | Self::StatHandle(handle) | Self::ReadDir(handle) => {
                put_string(&mut body, handle);
            }
            Self::Read { handle, offset, len } => {
                put_string(&mut body, handle);
                body.extend(offset.to_be_bytes());
                body.extend(len.to_be_bytes());
            }
            Self::Write { handle, offset, bytes } => {
                put_string(&mut body, handle);
                body.extend(offset.to_be_bytes());
                put_string(&mut body, bytes);
            }
            Self::Stat(path) | Self::OpenDir(path) | Self::Remove(path) => {
                put_string(&mut body, path.as_bytes());
            }
            Self::MakeDir { path, is_private } => {
                put_string(&mut body, path.as_bytes());
                if is_private {
                    body.extend(HAS_MODE.to_be_bytes());
                    // At its making and not afterwards, so that no other user can open it in between.
                    body.extend(0o700_u32.to_be_bytes());
                } else {
                    body.extend(0_u32.to_be_bytes());
                }
            }
            Self::Rename { from, to } => {
                put_string(&mut body, from.as_bytes());
                put_string(&mut body, to.as_bytes());
            }
            Self::Link { from, to } => {
                put_string(&mut body, HARDLINK.as_bytes());
                put_string(&mut body, from.as_bytes());
                put_string(&mut body, to.as_bytes());
            }
            Self::Sync(handle) => {
                put_string(&mut body, FSYNC.as_bytes());
                put_string(&mut body, handle);
            }
        }
        prepend_len(&body)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::OpenForReading(_) | Self::OpenNew(_) => OPEN,
            Self::Close(_) => CLOSE,
            Self::Read { .. } => READ,
            Self::Write { .. } => WRITE,
            // LSTAT does not follow symbolic links: what is behind one is not the store's object.
            Self::Stat(_) => LSTAT,
            Self::StatHandle(_) => FSTAT,
            Self::OpenDir(_) => OPENDIR,
            Self::ReadDir(_) => READDIR,
            Self::Remove(_) => REMOVE,
            Self::MakeDir { .. } => MKDIR,
            Self::Rename { .. } => RENAME,
            Self::Link { .. } | Self::Sync(_) => EXTENDED,
        }
    }
}

impl SftpReply {
    /// The answer in a message, and the number of the request that it answers.
    pub fn decode(message: &[u8]) -> Result<(u32, Self), MalformedReply> {
        let mut fields = SftpFields(message);
        // The number stands behind the kind in every answer, and several requests are under way at once.
        let kind = fields.read_u8()?;
        let id = fields.read_u32()?;
        let reply = match kind {
            STATUS => {
                let code = StatusCode::from_number(fields.read_u32()?);
                // Old servers send no message.
                let message = fields.read_string().unwrap_or_default();
                Self::Status { code, message: String::from_utf8_lossy(message).into_owned() }
            }
            HANDLE => Self::Handle(fields.read_string()?.to_vec()),
            DATA => Self::Data(fields.read_string()?.to_vec()),
            NAME => Self::Names(decode_names(&mut fields)?),
            ATTRS => Self::Attributes(fields.read_attributes()?),
            _ => return Err(MalformedReply),
        };
        Ok((id, reply))
    }
}

impl StatusCode {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Done,
            1 => Self::EndOfFile,
            2 => Self::Missing,
            3 => Self::Denied,
            8 => Self::Unsupported,
            // OpenSSH says 4 to whatever has no number of its own: a name that is taken, a full disk.
            other => Self::Failed(other),
        }
    }
}

fn decode_names(fields: &mut SftpFields<'_>) -> Result<Vec<NamedFile>, MalformedReply> {
    let count = fields.read_u32()?;
    // The count is the server's claim, so no memory is reserved for it.
    let mut files = Vec::new();
    // Each round takes bytes of the message, so that a forged count ends with it.
    for _ in 0..count {
        let name = fields.read_string()?.to_vec();
        // The line that 'ls -l' would print.
        fields.read_string()?;
        files.push(NamedFile { name, attributes: fields.read_attributes()? });
    }
    Ok(files)
}

/// What is left of a message.
struct SftpFields<'a>(&'a [u8]);

impl<'a> SftpFields<'a> {
    fn read_bytes(&mut self, len: usize) -> Result<&'a [u8], MalformedReply> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(MalformedReply)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn read_u8(&mut self) -> Result<u8, MalformedReply> {
        self.read_bytes(1)?.first().copied().ok_or(MalformedReply)
    }

    fn read_u32(&mut self) -> Result<u32, MalformedReply> {
        let bytes = self.read_bytes(4)?.try_into().map_err(|_| MalformedReply)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn read_u64(&mut self) -> Result<u64, MalformedReply> {
        let bytes = self.read_bytes(8)?.try_into().map_err(|_| MalformedReply)?;
        Ok(u64::from_be_bytes(bytes))
    }

    fn read_string(&mut self) -> Result<&'a [u8], MalformedReply> {
        let len = usize::try_from(self.read_u32()?).map_err(|_| MalformedReply)?;
        self.read_bytes(len)
    }

    fn read_attributes(&mut self) -> Result<FileAttributes, MalformedReply> {
        let flags = self.read_u32()?;
        let mut attributes = FileAttributes::default();
        if flags & HAS_SIZE != 0 {
            attributes.size = Some(self.read_u64()?);
        }
        if flags & HAS_OWNER != 0 {
            // User and group of the server mean nothing here.
            self.read_bytes(8)?;
        }
        if flags & HAS_MODE != 0 {
            attributes.mode = Some(self.read_u32()?);
        }
        if flags & HAS_TIMES != 0 {
            // The time of the last access, which no object has a use for.
            self.read_u32()?;
            attributes.modified = Some(UNIX_EPOCH + Duration::from_secs(u64::from(self.read_u32()?)));
        }
        if flags & HAS_EXTENDED != 0 {
            // Whatever the count says, this ends with the message.
            for _ in 0..self.read_u32()? {
                self.read_string()?;
                self.read_string()?;
            }
        }
        Ok(attributes)
    }
}

fn put_string(body: &mut Vec<u8>, bytes: &[u8]) {
    // Nothing that is sent is longer than a piece of a file.
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    body.extend(len.to_be_bytes());
    body.extend(bytes);
}

fn prepend_len(body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(body.len() + 4);
    put_string(&mut message, body);
    message
}

/// Reads any bytes as messages of a server.
pub(crate) fn fuzz_decoder(bytes: &[u8]) {
    let _ = decode_version(bytes);
    let _ = SftpReply::decode(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_decoded_and_cut_ones_refused() {
        let mut names = vec![NAME, 0, 0, 0, 7, 0, 0, 0, 1];
        put_string(&mut names, b"file");
        put_string(&mut names, b"-rw------- 1 u g 5 file");
        names.extend((HAS_SIZE | HAS_OWNER | HAS_MODE | HAS_TIMES | HAS_EXTENDED).to_be_bytes());
        names.extend(5_u64.to_be_bytes());
        names.extend([0; 8]);
        names.extend((KIND_FILE | 0o600).to_be_bytes());
        names.extend(1_u32.to_be_bytes());
        names.extend(2_u32.to_be_bytes());
        names.extend(1_u32.to_be_bytes());
        put_string(&mut names, b"x");
        put_string(&mut names, b"y");
        let Ok((7, SftpReply::Names(found))) = SftpReply::decode(&names) else { panic!("names") };
        assert_eq!(found[0].name, b"file");
        assert_eq!(found[0].attributes.size, Some(5));
        assert_eq!(found[0].attributes.modified, Some(UNIX_EPOCH + Duration::from_secs(2)));
        assert!(found[0].attributes.is_file() && !found[0].attributes.is_dir());
        (0..names.len()).for_each(|len| assert!(SftpReply::decode(&names[..len]).is_err(), "{len}"));
        let status = [STATUS, 0, 0, 0, 1, 0, 0, 0, 4];
        let Ok((1, SftpReply::Status { code: StatusCode::Failed(4), .. })) = SftpReply::decode(&status)
        else {
            panic!("a status without a message")
        };
    }

    #[test]
    fn a_huge_count_or_length_takes_no_memory() {
        let names = [NAME, 0, 0, 0, 7, 255, 255, 255, 255, 0, 0, 0, 0];
        assert!(SftpReply::decode(&names).is_err());
        assert!(SftpReply::decode(&[DATA, 0, 0, 0, 7, 255, 255, 255, 255]).is_err());
        assert!(decode_version(&[VERSION_REPLY, 0, 0, 0, 2]).is_err(), "an older version");
    }
}
