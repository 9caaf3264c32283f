//! Encrypted connections between processes that have a volume's key.
//!
//! The handshake is `Noise_NNpsk0_25519_ChaChaPoly_SHA256` with a key that is derived from the volume's master key: a side
//! without it cannot finish the handshake, and each connection has keys of its own, so that what was recorded cannot be
//! read by whoever gets the master key later. Both prefaces, the volume and the name of the worktree go into its prologue.
//!
//! Invariant: nothing is believed of a peer before it has proved that it has the key.

mod noise;
mod primitives;
mod record;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vellum_crypto::{KeyEpoch, VolumeKeys};

use crate::error::{ClusterError, Result};
use crate::protocol::preface::{ClientPreface, PREFACE_LEN, PrefaceVerdict, ServerPreface};
use crate::protocol::{CLIENT_FRAME_MAX, HANDSHAKE_TIME, SERVER_FRAME_MAX, VERSION};
use noise::{NoiseIdentity, accept_handshake, begin_handshake};
pub use record::{FrameReader, FrameWriter};

/// What both sides of a connection must have in common.
#[derive(Clone)]
pub struct ConnectionIdentity {
    /// The keys of the volume.
    pub keys: Arc<VolumeKeys>,
    /// The name of the worktree.
    pub worktree: String,
}

/// The two directions of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Frames of the other side.
    pub reader: FrameReader,
    /// Frames to the other side.
    pub writer: FrameWriter,
    /// To end it from another thread.
    pub stream: TcpStream,
}

/// Performs the client's side of the handshake.
pub fn connect_stream(stream: TcpStream, identity: &ConnectionIdentity) -> Result<Connection> {
    prepare_stream(&stream)?;
    let epoch = identity.keys.newest_epoch();
    let preface = ClientPreface { version: VERSION, epoch: epoch.number() }.encode();
    let handshake = HandshakeStream::new(&stream);
    handshake.write_all(&preface)?;
    let mut answer = [0; PREFACE_LEN];
    handshake.read_exact(&mut answer)?;
    ServerPreface::decode(&answer)?.check_welcome(epoch)?;
    let noise = begin_handshake(&handshake, &build_noise_identity(identity, epoch, &preface, &answer)?)?;
    split_stream(stream, noise, SERVER_FRAME_MAX)
}

/// Performs the server's side of the handshake.
pub fn accept_stream(stream: TcpStream, identity: &ConnectionIdentity) -> Result<Connection> {
    prepare_stream(&stream)?;
    let handshake = HandshakeStream::new(&stream);
    let mut preface = [0; PREFACE_LEN];
    handshake.read_exact(&mut preface)?;
    let client = ClientPreface::decode(&preface)?;
    // The volume's key was changed elsewhere, and this process has not looked since. A client with a newer key is the sign
    // for it.
    if client.epoch > identity.keys.newest_epoch().number() {
        identity.keys.look_for_newer_keys();
    }
    let newest = identity.keys.newest_epoch();
    let verdict = match client {
        ClientPreface { version, .. } if version != VERSION => PrefaceVerdict::OtherVersion,
        // An old key is not enough: it was changed so that whoever had it is shut out.
        ClientPreface { epoch, .. } if epoch < newest.number() => PrefaceVerdict::OlderKey,
        ClientPreface { epoch, .. } if epoch > newest.number() => PrefaceVerdict::NewerKey,
        ClientPreface { .. } => PrefaceVerdict::Welcome,
    };
    let answer = ServerPreface { version: VERSION, verdict, epoch: newest.number() }.encode();
    // Also if the client is refused: it can only say why if it learns the reason.
    handshake.write_all(&answer)?;
    match verdict {
        PrefaceVerdict::Welcome => {}
        PrefaceVerdict::OtherVersion | PrefaceVerdict::OlderKey | PrefaceVerdict::NewerKey => {
            return Err(ClusterError::Violation("the client cannot be served"));
        }
    }
    let noise = accept_handshake(&handshake, &build_noise_identity(identity, newest, &preface, &answer)?)?;
    split_stream(stream, noise, CLIENT_FRAME_MAX)
}

/// A stream during the handshake, all of which has to be done within [`HANDSHAKE_TIME`].
struct HandshakeStream<'s> {
    stream: &'s TcpStream,
    until: Instant,
}

impl<'s> HandshakeStream<'s> {
    fn new(stream: &'s TcpStream) -> Self {
        Self { stream, until: Instant::now() + HANDSHAKE_TIME }
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(bytes)
    }

    /// Fails at the end of the time, also if a peer sends a byte now and then.
    fn read_exact(&self, mut room: &mut [u8]) -> io::Result<()> {
        let mut stream = self.stream;
        while !room.is_empty() {
            let left = self.until.saturating_duration_since(Instant::now());
            // No time at all would mean to wait for ever.
            stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match stream.read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => room = room.get_mut(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if left.is_zero() && !room.is_empty() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

fn prepare_stream(stream: &TcpStream) -> Result<()> {
    // A request is one small packet, and waits for no other.
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE_TIME))?;
    Ok(())
}

fn split_stream(stream: TcpStream, noise: snow::StatelessTransportState, max: usize) -> Result<Connection> {
    // For the first frames; whoever uses the connection sets its own.
    stream.set_read_timeout(Some(HANDSHAKE_TIME))?;
    let noise = Arc::new(noise);
    let reader = FrameReader::new(stream.try_clone()?, noise.clone(), max);
    let writer = FrameWriter::new(stream.try_clone()?, noise);
    Ok(Connection { reader, writer, stream })
}

fn build_noise_identity(
    identity: &ConnectionIdentity,
    epoch: KeyEpoch,
    client: &[u8; PREFACE_LEN],
    server: &[u8; PREFACE_LEN],
) -> Result<NoiseIdentity> {
    let key = identity.keys.connection_key(epoch);
    let key = key.ok_or(ClusterError::OlderKey { required: epoch })?;
    let mut prologue = [*client, *server].concat();
    prologue.extend(identity.keys.volume_id().as_bytes());
    // Last, so that its length needs no field of its own.
    prologue.extend(identity.worktree.as_bytes());
    Ok(NoiseIdentity { key, prologue })
}
