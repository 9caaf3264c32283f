//! Messages in a stream: each in one or more fragments with their lengths in front (RFC 5531, section 11).

use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::memory::{MemoryPart, MessageMemory, UNCOUNTED};
use super::protocol::TRANSFER_MAX;
use super::xdr::padding_len;

/// The bit of a length that says that no fragment follows.
const LAST: u32 = 1 << 31;
/// Longest message: what is written at once, with all that may be in front of it.
const MESSAGE_MAX: usize = TRANSFER_MAX as usize + (16 << 10);
/// Bytes for which memory is asked at once. What is only announced takes none.
const PIECE: usize = 64 << 10;
/// Time for a message, from its beginning to its end.
const MESSAGE_TIME: Duration = Duration::from_secs(30);
/// Time in which others have to give memory back that a message needs.
const MEMORY_TIME: Duration = Duration::from_secs(10);
/// Time between two messages. Clients of kernels end connections themselves that are idle for 5 minutes.
const IDLE_TIME: Duration = Duration::from_secs(360);
/// Time for an answer to be taken.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// A message.
pub struct ReceivedMessage {
    /// All of it.
    pub bytes: Vec<u8>,
    /// The memory that it takes.
    pub memory: Option<MemoryPart>,
}

/// An answer: its head, and content behind it.
#[derive(Debug, Default)]
pub struct MessageAnswer {
    /// The head.
    pub head: Vec<u8>,
    /// Content, without its padding.
    pub body: Vec<u8>,
}

/// Reads a message. None: the client has ended the connection.
pub async fn read_message(
    stream: &mut (impl AsyncRead + Unpin),
    memory: &MessageMemory,
) -> io::Result<Option<ReceivedMessage>> {
    let mut mark = [0; 4];
    match timeout(IDLE_TIME, stream.read_exact(&mut mark)).await? {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    timeout(MESSAGE_TIME, read_fragments(stream, memory, u32::from_be_bytes(mark))).await?.map(Some)
}

async fn read_fragments(
    stream: &mut (impl AsyncRead + Unpin),
    memory: &MessageMemory,
    first: u32,
) -> io::Result<ReceivedMessage> {
    let mut message = ReceivedMessage { bytes: Vec::new(), memory: None };
    let mut mark = first;
    loop {
        let mut left = usize::try_from(mark & !LAST).unwrap_or(usize::MAX);
        if left > MESSAGE_MAX - message.bytes.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        while left > 0 {
            let start = message.bytes.len();
            let piece = left.min(PIECE);
            let counted = (start + piece).saturating_sub(UNCOUNTED) - start.saturating_sub(UNCOUNTED);
            let part = memory.reserve(counted, MEMORY_TIME).await.ok_or(io::ErrorKind::OutOfMemory)?;
            match &mut message.memory {
                Some(held) => held.merge(part),
                None => message.memory = Some(part),
            }
            message.bytes.resize(start + piece, 0);
            stream.read_exact(message.bytes.get_mut(start..).unwrap_or_default()).await?;
            left -= piece;
        }
        if mark & LAST != 0 {
            return Ok(message);
        }
        mark = stream.read_u32().await?;
    }
}

/// Writes an answer.
pub async fn write_answer(stream: &mut (impl AsyncWrite + Unpin), answer: MessageAnswer) -> io::Result<()> {
    let padding = padding_len(answer.body.len());
    let len = u32::try_from(answer.head.len() + answer.body.len() + padding);
    let mark = len.map_err(io::Error::other)? | LAST;
    let mark = Bytes::copy_from_slice(&mark.to_be_bytes());
    let padding = Bytes::from_static(&[0; 3]).slice(..padding);
    let mut all = mark.chain(Bytes::from(answer.head)).chain(Bytes::from(answer.body)).chain(padding);
    timeout(ANSWER_TIME, stream.write_all_buf(&mut all)).await?
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let memory = MessageMemory::new();
        let mut stream = bytes;
        let read = runtime.block_on(read_message(&mut stream, &memory));
        Ok(read?.map(|message| message.bytes))
    }

    #[test]
    fn fragments_are_joined() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[0x80, 0, 0, 2, 7, 8]).unwrap(), Some(vec![7, 8]));
        assert_eq!(read(&[0, 0, 0, 1, 7, 0, 0, 0, 0, 0x80, 0, 0, 1, 8]).unwrap(), Some(vec![7, 8]));
        assert!(read(&[0x80, 0, 0, 3, 7, 8]).is_err());
        assert!(read(&[0, 0, 0, 1, 7]).is_err());
    }

    #[test]
    fn no_length_is_believed() {
        for mark in [LAST | (MESSAGE_MAX as u32 + 1), u32::MAX, LAST - 1, u32::from_be_bytes(*b"GET ")] {
            assert_eq!(read(&mark.to_be_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let mut joined = (MESSAGE_MAX as u32).to_be_bytes().to_vec();
        joined.resize(4 + MESSAGE_MAX, 0);
        joined.extend_from_slice(&[0x80, 0, 0, 1, 0]);
        assert_eq!(read(&joined).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn answers_are_padded() {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let mut written = Vec::new();
        let answer = MessageAnswer { head: vec![1; 4], body: vec![2; 5] };
        runtime.block_on(write_answer(&mut written, answer)).unwrap();
        assert_eq!(written, [0x80, 0, 0, 12, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0, 0, 0]);
    }
}
