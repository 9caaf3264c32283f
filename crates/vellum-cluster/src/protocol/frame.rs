//! Frames: a kind of one byte, and the fields of the kind.
//!
//! Invariant: a decoder accepts exactly what the encoder of the same version writes.

use std::collections::BTreeSet;

use vellum_fuse::transport::MAX_WRITE;
use vellum_fuse::wire::{FuseAnswer, FuseRequest, RequestHeader};

use super::fields::{FrameFields, append_bytes};
use super::lease::Lease;
use super::reclaim::{ReclaimedLock, append_locks, read_lock_places, read_locks};
use super::{LEASES_IN_FRAME_MAX, MARKS_SENT_MAX, SessionId};
use crate::error::{ClusterError, Result};

/// Bytes of a host's name.
const HOST_MAX: usize = 255;
/// Bytes of a path: `PATH_MAX`.
const PATH_MAX: usize = 4096;
/// Nodes in a frame, a count: a frame of 32 KiB.
pub const HELD_NODES_MAX: usize = 4096;
/// The largest number of an error that a kernel takes from a filesystem: a larger one it refuses, and the program would wait for
/// an answer for ever.
const ERRNO_MAX: i32 = 511;

const HELLO: u8 = 1;
const REQUEST: u8 = 2;
const PING: u8 = 3;
const HOLD: u8 = 4;
const BYE: u8 = 5;
const RETURN: u8 = 6;
const RECALLED: u8 = 7;
const RECLAIM: u8 = 8;
const WELCOME: u8 = 1;
const ANSWER: u8 = 2;
const PONG: u8 = 3;
const GONE: u8 = 4;
const LEASED_ANSWER: u8 = 5;
const RECALL: u8 = 6;
const RECLAIMED: u8 = 7;
const NODE_LEASE: u8 = 1;
const NAMES_LEASE: u8 = 2;

/// Who a client is, and what its mount shows of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientDescription {
    /// The name of its host.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Where the worktree is mounted there.
    pub mountpoint: Vec<u8>,
    /// The state directory through which it opened the volume.
    pub state: Vec<u8>,
    /// The socket on which it receives commands; empty: none.
    pub control: Vec<u8>,
    /// The address of the store, as it uses it.
    pub store: String,
    /// Where it would serve the worktree in place of the server, `HOST:PORT`; empty: it never would.
    pub stands_by: String,
}

/// A frame of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientFrame<'a> {
    /// Its first one. `session`: the one that it had before, or [`SessionId::NONE`].
    Hello {
        /// The session.
        session: SessionId,
        /// Who it is.
        client: ClientDescription,
    },
    /// A request of its kernel, with its number within the client.
    Request(FuseRequest<'a>),
    /// It is there.
    Ping {
        /// How many it has sent before, over this connection.
        number: u64,
    },
    /// Nodes that its kernel knows from an earlier session.
    Hold(Vec<u64>),
    /// What it was granted and does not use any more.
    Return(Vec<Lease>),
    /// What was recalled is not used any more.
    Recalled {
        /// The recall.
        number: u64,
    },
    /// Locks that its programs had when another process served. Sent before any request, and answered by
    /// [`ServerFrame::Reclaimed`].
    Reclaim {
        /// The locks.
        locks: Vec<ReclaimedLock>,
        /// Whether it has no more.
        is_last: bool,
    },
    /// It ends.
    Bye,
}

/// A process that serves, as it tells a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerProcess {
    /// Which process: another one has another id.
    pub id: [u8; 16],
    /// The last requests of the client that it found carried out when it began to serve.
    pub carried_out: BTreeSet<u64>,
}

/// A frame of a server.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerFrame<'a> {
    /// Its first one.
    Welcome {
        /// The session under which requests are carried out from now on.
        session: SessionId,
        /// Whether it is the one that the client had.
        resumed: bool,
        /// Whether the client may take up the locks that it had, and has to say that it has done so.
        may_reclaim: bool,
        /// How many of the nodes that the client names in this session are held: the first ones.
        held: u64,
        /// Which process serves.
        server: ServerProcess,
    },
    /// The answer to a request.
    Answer {
        /// The request.
        number: u64,
        /// The number of the error; 0: success.
        errno: i32,
        /// What it succeeded with.
        body: &'a [u8],
        /// Whether the client may keep it: it is granted what the answer depends on.
        is_leased: bool,
    },
    /// The client gives back what it was granted.
    Recall {
        /// The number by which the client confirms it.
        number: u64,
        /// What is given back; nothing: all that it has.
        leases: Vec<Lease>,
    },
    /// The answer to [`ClientFrame::Reclaim`].
    Reclaimed {
        /// Which of the locks are lost, by their places in the frame.
        refused: Vec<u32>,
    },
    /// The answer to [`ClientFrame::Ping`].
    Pong {
        /// The last ping that has arrived.
        number: u64,
    },
    /// The session has ended, or is not taken.
    Gone {
        /// Whether the server ends, and this client's process is to serve next.
        is_successor: bool,
    },
}

impl<'a> ClientFrame<'a> {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { session, client } => encode_hello(*session, client),
            Self::Request(request) => encode_request(&request.header, request.body()),
            Self::Ping { number } => encode_number(PING, *number),
            Self::Hold(nodes) => {
                // Senders cut what is longer than a frame may be into several, so that this is the number.
                let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                let mut bytes = vec![HOLD];
                bytes.extend(count.to_le_bytes());
                nodes.iter().for_each(|node| bytes.extend(node.to_le_bytes()));
                bytes
            }
            Self::Return(leases) => {
                let mut bytes = vec![RETURN];
                append_leases(&mut bytes, leases);
                bytes
            }
            Self::Recalled { number } => encode_number(RECALLED, *number),
            Self::Reclaim { locks, is_last } => {
                let mut bytes = vec![RECLAIM, u8::from(*is_last)];
                append_locks(&mut bytes, locks);
                bytes
            }
            Self::Bye => vec![BYE],
        }
    }

    /// Decodes it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut fields = FrameFields::new(bytes);
        let frame = match fields.read_u8()? {
            HELLO => decode_hello(&mut fields)?,
            REQUEST => {
                let header = RequestHeader {
                    unique: fields.read_u64()?,
                    opcode: fields.read_u32()?,
                    node: fields.read_u64()?,
                    uid: fields.read_u32()?,
                    gid: fields.read_u32()?,
                    // The number of a process on another machine says nothing here.
                    pid: 0,
                };
                Self::Request(FuseRequest::from_parts(header, fields.take_rest()))
            }
            PING => Self::Ping { number: fields.read_u64()? },
            RETURN => Self::Return(read_leases(&mut fields)?),
            RECALLED => Self::Recalled { number: fields.read_u64()? },
            RECLAIM => {
                let is_last = read_flag(&mut fields)?;
                Self::Reclaim { locks: read_locks(&mut fields)?, is_last }
            }
            HOLD => {
                // Checked before memory is taken for so many.
                let count = usize::try_from(fields.read_u32()?).unwrap_or(usize::MAX);
                if count > HELD_NODES_MAX {
                    return Err(ClusterError::Malformed("too many nodes"));
                }
                Self::Hold((0..count).map(|_| fields.read_u64()).collect::<Result<_>>()?)
            }
            BYE => Self::Bye,
            _ => return Err(ClusterError::Malformed("an unknown frame")),
        };
        fields.expect_end()?;
        Ok(frame)
    }
}

/// A request of a client: number, opcode, node, user, group, body.
#[must_use]
pub fn encode_request(header: &RequestHeader, body: &[u8]) -> Vec<u8> {
    let RequestHeader { opcode, unique, node, uid, gid, pid: _ } = *header;
    let mut bytes = Vec::with_capacity(1 + 28 + body.len());
    bytes.push(REQUEST);
    bytes.extend(unique.to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    bytes.extend(uid.to_le_bytes());
    bytes.extend(gid.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn encode_hello(session: SessionId, client: &ClientDescription) -> Vec<u8> {
    let ClientDescription { host, pid, mountpoint, state, control, store, stands_by } = client;
    let mut bytes = vec![HELLO];
    bytes.extend(session.0);
    bytes.extend(pid.to_le_bytes());
    append_bytes(&mut bytes, host.as_bytes());
    [mountpoint, state, control].into_iter().for_each(|path| append_bytes(&mut bytes, path));
    [store, stands_by].into_iter().for_each(|text| append_bytes(&mut bytes, text.as_bytes()));
    bytes
}

fn decode_hello<'a>(fields: &mut FrameFields<'_>) -> Result<ClientFrame<'a>> {
    let session = SessionId(fields.read_array()?);
    let client = ClientDescription {
        pid: fields.read_u32()?,
        host: fields.read_text(HOST_MAX)?.into(),
        mountpoint: fields.read_bytes(PATH_MAX)?.into(),
        state: fields.read_bytes(PATH_MAX)?.into(),
        control: fields.read_bytes(PATH_MAX)?.into(),
        store: fields.read_text(PATH_MAX)?.into(),
        stands_by: fields.read_text(PATH_MAX)?.into(),
    };
    Ok(ClientFrame::Hello { session, client })
}

fn read_server(fields: &mut FrameFields<'_>) -> Result<ServerProcess> {
    let id = fields.read_array()?;
    let mut carried_out = BTreeSet::new();
    let mut numbers = FrameFields::new(fields.take_rest());
    while !numbers.is_empty() {
        let number = numbers.read_u64()?;
        // Ascending, so that one set has one encoding, and a repeated number cannot pass the limit.
        if carried_out.len() >= MARKS_SENT_MAX || carried_out.last().is_some_and(|last| *last >= number) {
            return Err(ClusterError::Malformed("requests that no server keeps"));
        }
        carried_out.insert(number);
    }
    Ok(ServerProcess { id, carried_out })
}

impl<'a> ServerFrame<'a> {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { session, resumed, may_reclaim, held, server } => {
                let mut bytes = vec![WELCOME];
                bytes.extend(session.0);
                bytes.extend([u8::from(*resumed), u8::from(*may_reclaim)]);
                bytes.extend(held.to_le_bytes());
                bytes.extend(server.id);
                server.carried_out.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
                bytes
            }
            Self::Answer { number, errno, body, is_leased } => {
                let mut bytes = Vec::with_capacity(1 + 12 + body.len());
                bytes.push(if *is_leased { LEASED_ANSWER } else { ANSWER });
                bytes.extend(number.to_le_bytes());
                bytes.extend(errno.to_le_bytes());
                bytes.extend(*body);
                bytes
            }
            Self::Recall { number, leases } => {
                let mut bytes = encode_number(RECALL, *number);
                append_leases(&mut bytes, leases);
                bytes
            }
            Self::Reclaimed { refused } => {
                let count = u32::try_from(refused.len()).unwrap_or(u32::MAX);
                let mut bytes = vec![RECLAIMED];
                bytes.extend(count.to_le_bytes());
                refused.iter().for_each(|place| bytes.extend(place.to_le_bytes()));
                bytes
            }
            Self::Pong { number } => encode_number(PONG, *number),
            Self::Gone { is_successor } => vec![GONE, u8::from(*is_successor)],
        }
    }

    /// Decodes it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut fields = FrameFields::new(bytes);
        let frame = match fields.read_u8()? {
            WELCOME => Self::Welcome {
                session: SessionId(fields.read_array()?),
                resumed: read_flag(&mut fields)?,
                may_reclaim: read_flag(&mut fields)?,
                held: fields.read_u64()?,
                server: read_server(&mut fields)?,
            },
            kind @ (ANSWER | LEASED_ANSWER) => {
                let number = fields.read_u64()?;
                let errno = fields.read_array().map(i32::from_le_bytes)?;
                let body = fields.take_rest();
                // The kernel refuses an answer that has an error and a body, and the program that waits for it would hang.
                if !(0..=ERRNO_MAX).contains(&errno) || errno != 0 && !body.is_empty() {
                    return Err(ClusterError::Malformed("no error"));
                }
                Self::Answer { number, errno, body, is_leased: kind == LEASED_ANSWER }
            }
            RECALL => Self::Recall { number: fields.read_u64()?, leases: read_leases(&mut fields)? },
            RECLAIMED => Self::Reclaimed { refused: read_lock_places(&mut fields)? },
            PONG => Self::Pong { number: fields.read_u64()? },
            GONE => Self::Gone { is_successor: read_flag(&mut fields)? },
            _ => return Err(ClusterError::Malformed("an unknown frame")),
        };
        fields.expect_end()?;
        Ok(frame)
    }
}

fn read_flag(fields: &mut FrameFields<'_>) -> Result<bool> {
    match fields.read_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ClusterError::Malformed("neither yes nor no")),
    }
}

/// The frame of an answer; None if there is none yet.
#[must_use]
pub fn encode_answer(number: u64, answer: &FuseAnswer) -> Option<Vec<u8>> {
    let (errno, body): (i32, &[u8]) = match answer {
        FuseAnswer::Later => return None,
        // A request that wants no answer is confirmed all the same: the client sends it again otherwise.
        FuseAnswer::None | FuseAnswer::Done => (0, &[]),
        FuseAnswer::Failed(errno) => (errno.raw_os_error(), &[]),
        FuseAnswer::Small(small) => (0, small.answer_body()),
        FuseAnswer::Bytes(bytes) => (0, bytes),
        FuseAnswer::Shared(bytes) => (0, bytes),
    };
    debug_assert!(body.len() <= MAX_WRITE, "an answer is longer than any");
    Some(ServerFrame::Answer { number, errno, body, is_leased: false }.encode())
}

/// The frame of the same answer, which the client may keep.
#[must_use]
pub fn as_leased_answer(answer: &[u8]) -> Vec<u8> {
    // In a copy, since the plain form is kept for a client that may not have got it.
    let mut leased = answer.to_vec();
    if let Some(kind) = leased.first_mut() {
        *kind = LEASED_ANSWER;
    }
    leased
}

fn encode_number(kind: u8, number: u64) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(number.to_le_bytes());
    bytes
}

fn append_leases(bytes: &mut Vec<u8>, leases: &[Lease]) {
    let count = u32::try_from(leases.len()).unwrap_or(u32::MAX);
    bytes.extend(count.to_le_bytes());
    for lease in leases {
        let (kind, node) = match lease {
            Lease::Node(node) => (NODE_LEASE, node),
            Lease::Names(dir) => (NAMES_LEASE, dir),
        };
        bytes.push(kind);
        bytes.extend(node.to_le_bytes());
    }
}

fn read_leases(fields: &mut FrameFields<'_>) -> Result<Vec<Lease>> {
    let count = usize::try_from(fields.read_u32()?).unwrap_or(usize::MAX);
    if count > LEASES_IN_FRAME_MAX {
        return Err(ClusterError::Malformed("too many leases"));
    }
    let read_lease = |_| match fields.read_u8()? {
        NODE_LEASE => fields.read_u64().map(Lease::Node),
        NAMES_LEASE => fields.read_u64().map(Lease::Names),
        _ => Err(ClusterError::Malformed("an unknown lease")),
    };
    (0..count).map(read_lease).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use vellum_fuse::wire::FileLock;

    use super::super::reclaim::RECLAIMED_LOCKS_MAX;
    use super::*;

    fn description() -> ClientDescription {
        ClientDescription {
            host: "h1".into(),
            pid: 7,
            mountpoint: b"/mnt/\xff".to_vec(),
            state: b"/s".to_vec(),
            control: Vec::new(),
            store: "s3://bucket".into(),
            stands_by: "h1:7788".into(),
        }
    }

    fn server(carried_out: &[u64]) -> ServerProcess {
        ServerProcess { id: [9; 16], carried_out: carried_out.iter().copied().collect() }
    }

    fn welcome(resumed: bool, carried_out: &[u64]) -> ServerFrame<'static> {
        let server = server(carried_out);
        ServerFrame::Welcome { session: SessionId([3; 16]), resumed, may_reclaim: !resumed, held: 3, server }
    }

    fn reclaimed() -> ReclaimedLock {
        let kind = FileLock::EXCLUSIVE;
        let lock = FileLock { handle: 1, owner: 2, start: 3, end: u64::MAX, kind, pid: 5, is_flock: true };
        ReclaimedLock { node: 9, lock }
    }

    #[test]
    fn the_frames_of_a_client_are_encoded_and_decoded() {
        let header = RequestHeader { opcode: 16, unique: 9, node: 5, uid: 1, gid: 2, pid: 0 };
        let frames = [
            ClientFrame::Hello { session: SessionId([3; 16]), client: description() },
            ClientFrame::Request(FuseRequest::from_parts(header, b"body")),
            ClientFrame::Ping { number: 3 },
            ClientFrame::Return(vec![Lease::Node(5), Lease::Names(1)]),
            ClientFrame::Recalled { number: 8 },
            ClientFrame::Hold(vec![1, u64::MAX]),
            ClientFrame::Reclaim { locks: vec![reclaimed()], is_last: true },
            ClientFrame::Reclaim { locks: Vec::new(), is_last: false },
            ClientFrame::Bye,
        ];
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(ClientFrame::decode(&bytes).unwrap(), frame);
            assert!(ClientFrame::decode(&[]).is_err());
        }
    }

    #[test]
    fn the_frames_of_a_server_are_encoded_and_decoded() {
        let frames = [
            welcome(true, &[]),
            welcome(false, &[7, 9]),
            ServerFrame::Reclaimed { refused: vec![0, 7] },
            ServerFrame::Answer { number: 4, errno: 0, body: b"body", is_leased: true },
            ServerFrame::Answer { number: 4, errno: 2, body: b"", is_leased: false },
            ServerFrame::Recall { number: 2, leases: vec![Lease::Names(7)] },
            ServerFrame::Recall { number: 3, leases: Vec::new() },
            ServerFrame::Pong { number: 3 },
            ServerFrame::Gone { is_successor: false },
            ServerFrame::Gone { is_successor: true },
        ];
        for frame in frames {
            assert_eq!(ServerFrame::decode(&frame.encode()).unwrap(), frame);
        }
    }

    #[test]
    fn lengths_above_their_limits_are_refused() {
        let long = ClientDescription { host: "h".repeat(256), ..description() };
        assert!(ClientFrame::decode(&encode_hello(SessionId::NONE, &long)).is_err());
        assert!(ClientFrame::decode(&ClientFrame::Hold(vec![0; HELD_NODES_MAX + 1]).encode()).is_err());
        assert!(ClientFrame::decode(&[HOLD, 255, 255, 255, 255]).is_err());
        assert!(ClientFrame::decode(&[PING, 0]).is_err());
        let many = vec![Lease::Node(1); LEASES_IN_FRAME_MAX + 1];
        assert!(ClientFrame::decode(&ClientFrame::Return(many.clone()).encode()).is_err());
        assert!(ServerFrame::decode(&ServerFrame::Recall { number: 1, leases: many }.encode()).is_err());
        let locks = vec![reclaimed(); RECLAIMED_LOCKS_MAX + 1];
        assert!(ClientFrame::decode(&ClientFrame::Reclaim { locks, is_last: true }.encode()).is_err());
        let refused = vec![0; RECLAIMED_LOCKS_MAX + 1];
        assert!(ServerFrame::decode(&ServerFrame::Reclaimed { refused }.encode()).is_err());
        let answer = ServerFrame::Answer { number: 1, errno: -1, body: b"", is_leased: false };
        assert!(ServerFrame::decode(&answer.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = ClientFrame::decode(&bytes) {
                let again = frame.encode();
                prop_assert_eq!(ClientFrame::decode(&again).unwrap(), frame);
            }
            if let Ok(frame) = ServerFrame::decode(&bytes) {
                prop_assert_eq!(frame.encode(), bytes);
            }
        }
    }
}
