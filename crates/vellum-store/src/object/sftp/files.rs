//! Files of the server: read in pieces, of which several are under way.

use std::collections::VecDeque;

use super::channel::{SftpChannel, SftpTicket};
use super::wire::{FileAttributes, SftpReply, SftpRequest, StatusCode};
use super::{SftpFailure, SftpResult, expect_done};

/// Bytes of a piece: what every server reads and writes at once.
pub(super) const PIECE: u32 = 32 << 10;
/// Pieces under way, a count: 2 MiB, which hides 30 ms of latency at 500 Mbit/s.
pub(super) const PIECES_AT_ONCE: usize = 64;

/// A piece that was requested.
struct RequestedPiece<'a> {
    offset: u64,
    len: u32,
    ticket: SftpTicket<'a>,
}

/// Runs `work` with a handle, and closes it without waiting for the answer.
fn with_handle<T>(
    channel: &SftpChannel,
    handle: &[u8],
    work: impl FnOnce(&[u8]) -> SftpResult<T>,
) -> SftpResult<T> {
    let done = work(handle);
    // Closing a file that was only read can report nothing of use.
    let _ = channel.send(SftpRequest::Close(handle));
    done
}

fn open_for_reading(channel: &SftpChannel, path: &str) -> SftpResult<Vec<u8>> {
    match channel.ask(SftpRequest::OpenForReading(path))? {
        SftpReply::Handle(handle) => Ok(handle),
        other => Err(SftpFailure::from_reply(other)),
    }
}

fn expect_attributes(reply: SftpReply) -> SftpResult<FileAttributes> {
    match reply {
        SftpReply::Attributes(attributes) => Ok(attributes),
        other => Err(SftpFailure::from_reply(other)),
    }
}

/// The size of what must be a file.
fn expect_file_size(attributes: FileAttributes) -> SftpResult<u64> {
    attributes.size.filter(|_| attributes.is_file()).ok_or(SftpFailure::NotAFile)
}

/// The attributes of a path; none if nothing is there.
pub(super) fn find_attributes(channel: &SftpChannel, path: &str) -> SftpResult<Option<FileAttributes>> {
    match expect_attributes(channel.ask(SftpRequest::Stat(path))?) {
        Ok(attributes) => Ok(Some(attributes)),
        Err(SftpFailure::Missing) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The length of a file.
pub(super) fn read_size(channel: &SftpChannel, path: &str) -> SftpResult<u64> {
    expect_file_size(expect_attributes(channel.ask(SftpRequest::Stat(path))?)?)
}

/// A whole file, which may have `max` bytes.
pub(super) fn read_file(channel: &SftpChannel, path: &str, max: u64) -> SftpResult<Vec<u8>> {
    let handle = open_for_reading(channel, path)?;
    with_handle(channel, &handle, |handle| {
        let size = expect_file_size(expect_attributes(channel.ask(SftpRequest::StatHandle(handle))?)?)?;
        if size > max {
            return Err(SftpFailure::TooLarge(size));
        }
        read_pieces(channel, handle, 0, size)
    })
}

/// The bytes from `offset` on, `max` at most.
pub(super) fn read_file_range(
    channel: &SftpChannel,
    path: &str,
    offset: u64,
    max: u64,
) -> SftpResult<Vec<u8>> {
    let handle = open_for_reading(channel, path)?;
    with_handle(channel, &handle, |handle| read_pieces(channel, handle, offset, max))
}

/// Reads `len` bytes, or what there is of them.
fn read_pieces(channel: &SftpChannel, handle: &[u8], offset: u64, len: u64) -> SftpResult<Vec<u8>> {
    // No file is that long: its end comes first.
    let end = offset.saturating_add(len);
    let mut next = offset;
    let mut pieces: VecDeque<RequestedPiece<'_>> = VecDeque::new();
    let mut bytes = Vec::new();
    loop {
        while pieces.len() < PIECES_AT_ONCE && next < end {
            let len = u32::try_from(end - next).unwrap_or(PIECE).min(PIECE);
            let ticket = channel.send(SftpRequest::Read { handle, offset: next, len })?;
            pieces.push_back(RequestedPiece { offset: next, len, ticket });
            next += u64::from(len);
        }
        let Some(piece) = pieces.pop_front() else { return Ok(bytes) };
        let RequestedPiece { offset, len, ticket } = piece;
        match ticket.wait()? {
            // More bytes than requested, or none without the end of the file, are no answer to this request.
            SftpReply::Data(data) if data.len() > len as usize || data.is_empty() => {
                return Err(SftpFailure::from_reply(SftpReply::Data(data)));
            }
            SftpReply::Data(data) => {
                bytes.extend_from_slice(&data);
                let got = u32::try_from(data.len()).unwrap_or(len);
                if got < len {
                    // A server may give less than was asked for; what is missing comes before the next piece.
                    let offset = offset + u64::from(got);
                    let ticket = channel.send(SftpRequest::Read { handle, offset, len: len - got })?;
                    pieces.push_front(RequestedPiece { offset, len: len - got, ticket });
                }
            }
            // Requests beyond the end are still under way. Their answers are dropped.
            SftpReply::Status { code: StatusCode::EndOfFile, .. } => return Ok(bytes),
            other => return Err(SftpFailure::from_reply(other)),
        }
    }
}

/// Removes a file.
pub(super) fn remove_file(channel: &SftpChannel, path: &str) -> SftpResult<()> {
    expect_done(channel.ask(SftpRequest::Remove(path))?)
}
