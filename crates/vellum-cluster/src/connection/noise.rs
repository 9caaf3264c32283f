//! The Noise handshake over a stream.
//!
//! Invariant: a message of the handshake has a fixed length, so that nothing is allocated for a peer that may not have the
//! key.

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, StatelessTransportState};
use zeroize::Zeroizing;

use super::HandshakeStream;
use super::primitives::VolumeCryptoResolver;
use crate::error::{ClusterError, Result};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const KEY_LEN: usize = 32;
const TAG_LEN: usize = 16;
/// Bytes of each of the two messages: an ephemeral public key, and the tag of an empty payload.
const MESSAGE_LEN: usize = KEY_LEN + TAG_LEN;

/// What both sides must have in common.
pub struct NoiseIdentity {
    pub key: Zeroizing<[u8; KEY_LEN]>,
    /// Not secret.
    pub prologue: Vec<u8>,
}

/// The side that connects: sends the first message.
pub fn begin_handshake(
    stream: &HandshakeStream<'_>,
    identity: &NoiseIdentity,
) -> Result<StatelessTransportState> {
    let mut handshake = build_handshake(identity, |builder| builder.build_initiator())?;
    let mut message = [0; MESSAGE_LEN];
    handshake.write_message(&[], &mut message).map_err(wrap_local_error)?;
    stream.write_all(&message)?;
    // A server with another key says nothing, and closes the connection.
    stream.read_exact(&mut message).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => ClusterError::WrongKey,
        _ => error.into(),
    })?;
    handshake.read_message(&message, &mut []).map_err(|_| ClusterError::WrongKey)?;
    handshake.into_stateless_transport_mode().map_err(wrap_local_error)
}

/// The side that is connected to. A peer without the key gets no answer.
pub fn accept_handshake(
    stream: &HandshakeStream<'_>,
    identity: &NoiseIdentity,
) -> Result<StatelessTransportState> {
    let mut handshake = build_handshake(identity, |builder| builder.build_responder())?;
    let mut message = [0; MESSAGE_LEN];
    stream.read_exact(&mut message)?;
    handshake.read_message(&message, &mut []).map_err(|_| ClusterError::WrongKey)?;
    handshake.write_message(&[], &mut message).map_err(wrap_local_error)?;
    stream.write_all(&message)?;
    handshake.into_stateless_transport_mode().map_err(wrap_local_error)
}

fn build_handshake(
    identity: &NoiseIdentity,
    build: impl FnOnce(Builder<'_>) -> std::result::Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState> {
    let pattern: NoiseParams = PATTERN.parse().map_err(wrap_local_error)?;
    let builder = Builder::with_resolver(pattern, Box::new(VolumeCryptoResolver));
    builder
        .psk(0, &identity.key)
        .and_then(|builder| builder.prologue(&identity.prologue))
        .and_then(build)
        .map_err(wrap_local_error)
}

/// Failures that no peer causes: there is no randomness.
fn wrap_local_error(error: snow::Error) -> ClusterError {
    ClusterError::Io(std::io::Error::other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn shake(client: &NoiseIdentity, server: &NoiseIdentity) -> (Result<bool>, Result<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                accept_handshake(&HandshakeStream::new(&stream), server).map(|noise| noise.is_initiator())
            });
            let stream = TcpStream::connect(address).unwrap();
            let connected =
                begin_handshake(&HandshakeStream::new(&stream), client).map(|noise| noise.is_initiator());
            (connected, served.join().unwrap())
        })
    }

    fn identity(key: u8, prologue: &[u8]) -> NoiseIdentity {
        NoiseIdentity { key: Zeroizing::new([key; KEY_LEN]), prologue: prologue.into() }
    }

    #[test]
    fn sides_with_one_key_and_one_prologue_agree() {
        let (client, server) = shake(&identity(1, b"w"), &identity(1, b"w"));
        assert_eq!((client.unwrap(), server.unwrap()), (true, false));
    }

    #[test]
    fn another_key_or_another_prologue_is_refused() {
        for other in [identity(2, b"w"), identity(1, b"x")] {
            let (client, server) = shake(&other, &identity(1, b"w"));
            assert!(matches!(client.unwrap_err(), ClusterError::WrongKey));
            assert!(matches!(server.unwrap_err(), ClusterError::WrongKey));
        }
    }
}
