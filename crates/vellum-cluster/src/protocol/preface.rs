//! What both sides send before anything is encrypted: that it is this protocol, its version, and which key is to be used.
//!
//! Invariant: nothing secret is in it, and all of it goes into the prologue of the handshake, so that nobody in between
//! can change it unnoticed.

use vellum_crypto::KeyEpoch;

use super::fields::FrameFields;
use crate::error::{ClusterError, Result};

/// What every preface begins with.
pub const MAGIC: [u8; 8] = *b"vlmshare";
/// Bytes of a preface.
pub const PREFACE_LEN: usize = 16;

/// The client's preface: magic, version (16 bits), 0 (16 bits), key epoch (32 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPreface {
    /// The version of the protocol that it speaks.
    pub version: u16,
    /// The newest key epoch of which it has the key.
    pub epoch: u32,
}

/// The server's preface: magic, version (16 bits), verdict (16 bits), key epoch (32 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerPreface {
    /// The version of the protocol that it speaks.
    pub version: u16,
    /// Whether the handshake begins.
    pub verdict: PrefaceVerdict,
    /// The key epoch whose key it uses.
    pub epoch: u32,
}

/// What a server says to a client's preface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefaceVerdict {
    /// The handshake begins.
    Welcome,
    /// The versions differ.
    OtherVersion,
    /// The client has only an older key.
    OlderKey,
    /// The client has a newer key than the server.
    NewerKey,
}

impl PrefaceVerdict {
    fn number(self) -> u16 {
        match self {
            Self::Welcome => 0,
            Self::OtherVersion => 1,
            Self::OlderKey => 2,
            Self::NewerKey => 3,
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        [Self::Welcome, Self::OtherVersion, Self::OlderKey, Self::NewerKey]
            .into_iter()
            .find(|verdict| verdict.number() == number)
    }
}

impl ClientPreface {
    /// Encodes it.
    #[must_use]
    pub fn encode(self) -> [u8; PREFACE_LEN] {
        encode_preface(self.version, 0, self.epoch)
    }

    /// Decodes it. Of another version, only the version is looked at.
    pub fn decode(bytes: &[u8; PREFACE_LEN]) -> Result<Self> {
        let (version, _, epoch) = decode_preface(bytes)?;
        Ok(Self { version, epoch })
    }
}

impl ServerPreface {
    /// Encodes it.
    #[must_use]
    pub fn encode(self) -> [u8; PREFACE_LEN] {
        encode_preface(self.version, self.verdict.number(), self.epoch)
    }

    /// Decodes it.
    pub fn decode(bytes: &[u8; PREFACE_LEN]) -> Result<Self> {
        let (version, verdict, epoch) = decode_preface(bytes)?;
        // Another version may have verdicts of its own.
        let verdict = match PrefaceVerdict::from_number(verdict) {
            Some(verdict) => verdict,
            None if version != super::VERSION => PrefaceVerdict::OtherVersion,
            None => return Err(ClusterError::Malformed("an unknown verdict")),
        };
        Ok(Self { version, verdict, epoch })
    }

    /// Fails if the handshake does not begin. `newest`: the key epoch that the client offered.
    pub fn check_welcome(self, newest: KeyEpoch) -> Result<()> {
        match self.verdict {
            PrefaceVerdict::Welcome if self.version == super::VERSION => Ok(()),
            // A welcome from another version is no welcome: whoever is in between may have changed the verdict, which is
            // protected only by the handshake that follows.
            PrefaceVerdict::Welcome | PrefaceVerdict::OtherVersion => {
                Err(ClusterError::OtherVersion { theirs: self.version, ours: super::VERSION })
            }
            PrefaceVerdict::OlderKey => {
                // Not authenticated yet, so any number may stand here; it is only shown in the message.
                let required = KeyEpoch::from_number(self.epoch).unwrap_or(KeyEpoch::LAST);
                Err(ClusterError::OlderKey { required })
            }
            PrefaceVerdict::NewerKey => Err(ClusterError::ServerOlderKey { newest }),
        }
    }
}

fn encode_preface(version: u16, verdict: u16, epoch: u32) -> [u8; PREFACE_LEN] {
    let mut bytes = [0; PREFACE_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&version.to_le_bytes());
    bytes[10..12].copy_from_slice(&verdict.to_le_bytes());
    bytes[12..].copy_from_slice(&epoch.to_le_bytes());
    bytes
}

fn decode_preface(bytes: &[u8; PREFACE_LEN]) -> Result<(u16, u16, u32)> {
    let mut fields = FrameFields::new(bytes);
    // Before the version is read: the bytes of another protocol would otherwise be reported as some version of this one.
    if fields.read_array()? != MAGIC {
        return Err(ClusterError::OtherProtocol);
    }
    Ok((fields.read_u16()?, fields.read_u16()?, fields.read_u32()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::VERSION;

    #[test]
    fn prefaces_are_encoded_and_decoded() {
        let client = ClientPreface { version: 7, epoch: 9 };
        assert_eq!(ClientPreface::decode(&client.encode()).unwrap(), client);
        for verdict in (0..4).map(|number| PrefaceVerdict::from_number(number).unwrap()) {
            let server = ServerPreface { version: VERSION, verdict, epoch: 3 };
            assert_eq!(ServerPreface::decode(&server.encode()).unwrap(), server);
            assert_eq!(
                server.check_welcome(KeyEpoch::FIRST).is_ok(),
                verdict == PrefaceVerdict::Welcome,
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn other_protocols_and_versions_are_told_apart() {
        assert!(matches!(ServerPreface::decode(b"SSH-2.0-OpenSSH_"), Err(ClusterError::OtherProtocol)));
        let later = encode_preface(VERSION + 1, 77, 0);
        let error = ServerPreface::decode(&later).unwrap().check_welcome(KeyEpoch::FIRST).unwrap_err();
        assert!(matches!(error, ClusterError::OtherVersion { theirs, .. } if theirs == VERSION + 1));
        assert!(ServerPreface::decode(&encode_preface(VERSION, 77, 0)).is_err());
    }
}
