//! Messages to a gateway for NFS: heads of calls, and what is asked, by the number of its procedure.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_serve::nfs::protocol::{HANDLE_MAX, NFS_PROGRAM, NfsProcedure, TRANSFER_MAX};
use vellum_serve::nfs::request::NfsRequest;
use vellum_serve::nfs::rpc::{parse_call, refuse_call};
use vellum_serve::nfs::{MountRequest, xdr::XdrReader};

fuzz_target!(|message: &[u8]| {
    let call = match parse_call(message) {
        Ok(call) => call,
        Err(fault) => {
            let _ = refuse_call(fault);
            return;
        }
    };
    assert!(message.ends_with(call.arguments));
    if call.program != NFS_PROGRAM {
        let _ = MountRequest::decode(call.procedure, call.arguments);
        return;
    }
    let Some(procedure) = NfsProcedure::from_number(call.procedure) else { return };
    let Ok(request) = NfsRequest::decode(procedure, call.arguments) else { return };
    if procedure != NfsProcedure::Null {
        // Each begins with a handle.
        assert!(XdrReader::new(call.arguments).read_opaque(HANDLE_MAX).is_ok());
    }
    if let NfsRequest::Write { data, .. } = request {
        assert!(data.len() <= TRANSFER_MAX as usize);
    }
});
