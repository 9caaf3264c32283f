//! The heads of messages (RFC 5531): what is called, by whom, and whether a call was accepted.

use super::xdr::{XdrFault, XdrReader, XdrWriter};

const CALL: u32 = 0;
const REPLY: u32 = 1;
/// The version of RPC.
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// Most bytes of what a sender says of itself, by RFC 5531.
const CREDENTIAL_MAX: usize = 400;
/// Longest name of a machine, by RFC 5531.
const MACHINE_MAX: usize = 255;

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcCall<'a> {
    /// What the answer has to begin with.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Its procedure.
    pub procedure: u32,
    /// Who says to be calling.
    pub sender: RpcSender,
    /// What is behind the head.
    pub arguments: &'a [u8],
}

/// Who says to be calling. Nothing of it is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcSender {
    /// Nobody says so.
    Anonymous,
    /// A user (`AUTH_SYS`).
    User(u32),
}

/// Why a call is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcFault {
    /// It is no call: there is nobody to answer.
    #[error("a message is no call")]
    NotACall,
    /// It is of another version of RPC.
    #[error("a call is of another version of RPC")]
    Version {
        /// The call.
        xid: u32,
    },
    /// Its sender is not let in.
    #[error("{reason}")]
    Credential {
        /// The call.
        xid: u32,
        /// Why.
        reason: AuthRefusal,
    },
}

/// Why a sender is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum AuthRefusal {
    /// What it says of itself cannot be parsed.
    #[error("what a call says of its sender cannot be parsed")]
    BadCredential = 1,
    /// It may not come in.
    #[error("the user is not allowed; --allow-uid allows others")]
    Rejected = 2,
    /// It says nothing of itself, or in a way that is not understood.
    #[error("a call does not name its user (AUTH_SYS)")]
    TooWeak = 5,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// An answer follows.
    Success,
    /// There is no such program here.
    NoProgram,
    /// There is, in another version.
    ProgramVersion(u32),
    /// It has no such procedure.
    NoProcedure,
    /// What was asked cannot be parsed.
    BadArguments,
}

/// Parses a message.
pub fn parse_call(message: &[u8]) -> Result<RpcCall<'_>, RpcFault> {
    let mut reader = XdrReader::new(message);
    let mut read = || reader.read_u32().map_err(|_| RpcFault::NotACall);
    let xid = read()?;
    if read()? != CALL {
        return Err(RpcFault::NotACall);
    }
    if read()? != RPC_VERSION {
        return Err(RpcFault::Version { xid });
    }
    let program = read()?;
    let version = read()?;
    let procedure = read()?;
    let refused = |reason| RpcFault::Credential { xid, reason };
    let flavor = read()?;
    let bad = |_| refused(AuthRefusal::BadCredential);
    let credential = reader.read_opaque(CREDENTIAL_MAX).map_err(bad)?;
    let sender = match flavor {
        AUTH_NONE => RpcSender::Anonymous,
        AUTH_SYS => RpcSender::User(read_user(credential).map_err(bad)?),
        _ => return Err(refused(AuthRefusal::TooWeak)),
    };
    // The verifier, which is empty for these.
    reader.read_u32().map_err(bad)?;
    reader.read_opaque(CREDENTIAL_MAX).map_err(bad)?;
    Ok(RpcCall { xid, program, version, procedure, sender, arguments: reader.rest() })
}

/// The user of an `AUTH_SYS` credential. Its groups give nobody anything here.
fn read_user(credential: &[u8]) -> Result<u32, XdrFault> {
    let mut reader = XdrReader::new(credential);
    // A number that the client chose.
    reader.read_u32()?;
    reader.read_opaque(MACHINE_MAX)?;
    reader.read_u32()
}

/// Begins the answer to a call.
#[must_use]
pub fn begin_answer(xid: u32, outcome: CallOutcome) -> XdrWriter {
    let mut out = XdrWriter::with_capacity(256);
    out.put_u32(xid);
    out.put_u32(REPLY);
    // Accepted, with an empty verifier.
    for word in [0, AUTH_NONE, 0] {
        out.put_u32(word);
    }
    match outcome {
        CallOutcome::Success => out.put_u32(0),
        CallOutcome::NoProgram => out.put_u32(1),
        // The lowest and the highest version that there is.
        CallOutcome::ProgramVersion(version) => {
            for word in [2, version, version] {
                out.put_u32(word);
            }
        }
        CallOutcome::NoProcedure => out.put_u32(3),
        CallOutcome::BadArguments => out.put_u32(4),
    }
    out
}

/// The answer to a call that is not let in; None if it cannot have one.
#[must_use]
pub fn refuse_call(fault: RpcFault) -> Option<Vec<u8>> {
    let mut out = XdrWriter::default();
    let words: &[u32] = match fault {
        RpcFault::NotACall => return None,
        RpcFault::Version { xid } => &[xid, REPLY, 1, 0, RPC_VERSION, RPC_VERSION],
        RpcFault::Credential { xid, reason } => &[xid, REPLY, 1, 1, reason as u32],
    };
    for word in words {
        out.put_u32(*word);
    }
    Some(out.into_bytes())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn call(flavor: u32, credential: &[u8]) -> Vec<u8> {
        let mut out = XdrWriter::default();
        for word in [9, CALL, RPC_VERSION, 100_003, 3, 1, flavor] {
            out.put_u32(word);
        }
        out.put_opaque(credential);
        out.put_u32(AUTH_NONE);
        out.put_opaque(b"");
        out.put_u32(77);
        out.into_bytes()
    }

    fn user(uid: u32) -> Vec<u8> {
        let mut out = XdrWriter::default();
        out.put_u32(1);
        out.put_opaque(b"host");
        for word in [uid, 100, 0] {
            out.put_u32(word);
        }
        out.into_bytes()
    }

    #[test]
    fn callers_are_who_they_say() {
        let message = call(AUTH_SYS, &user(1000));
        let parsed = parse_call(&message).unwrap();
        assert_eq!((parsed.xid, parsed.program, parsed.version, parsed.procedure), (9, 100_003, 3, 1));
        assert_eq!((parsed.sender, parsed.arguments), (RpcSender::User(1000), [0, 0, 0, 77].as_slice()));
        let message = call(AUTH_NONE, b"");
        assert_eq!(parse_call(&message).unwrap().sender, RpcSender::Anonymous);
    }

    #[test]
    fn what_is_no_call_is_refused() {
        let refusal = |message: &[u8]| parse_call(message).unwrap_err();
        let credential = |reason| RpcFault::Credential { xid: 9, reason };
        assert_eq!(refusal(&call(6, b"")), credential(AuthRefusal::TooWeak));
        assert_eq!(refusal(&call(AUTH_SYS, &[0; 7])), credential(AuthRefusal::BadCredential));
        assert_eq!(refusal(&call(AUTH_SYS, &[0; 404])), credential(AuthRefusal::BadCredential));
        let mut reply = call(AUTH_NONE, b"");
        reply[7] = 1;
        assert_eq!(refusal(&reply), RpcFault::NotACall);
        let mut other = call(AUTH_NONE, b"");
        other[11] = 3;
        assert_eq!(refusal(&other), RpcFault::Version { xid: 9 });
        assert_eq!(refuse_call(RpcFault::NotACall), None);
        let whole = call(AUTH_SYS, &user(0));
        for len in 0..whole.len() - 4 {
            refusal(&whole[..len]);
        }
    }
}
