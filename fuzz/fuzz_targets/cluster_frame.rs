//! A frame of a client or a server of a shared worktree, and the preface before all frames: whatever they hold, they are
//! decoded or refused; a request in one has a weight that is at most its length and the longest answer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vellum_cluster::protocol::frame::{ClientFrame, ServerFrame};
use vellum_cluster::protocol::preface::{ClientPreface, PREFACE_LEN, ServerPreface};
use vellum_cluster::protocol::weight::weigh_request;
use vellum_fuse::transport::MAX_WRITE;
use vellum_fuse::visit_named_nodes;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(frame) = ClientFrame::decode(bytes) {
        assert_eq!(ClientFrame::decode(&frame.encode()).unwrap(), frame);
        if let ClientFrame::Request(request) = frame {
            assert!(weigh_request(&request, request.decode_operation().ok().as_ref()) <= bytes.len() + MAX_WRITE + 1024);
        }
    }
    if let Ok(frame) = ServerFrame::decode(bytes) {
        assert_eq!(frame.encode(), bytes);
        if let ServerFrame::Answer { number, body, .. } = frame {
            visit_named_nodes(number as u32 % 64, body, |node| assert_ne!(node, 0));
        }
    }
    if let Some(preface) = bytes.first_chunk::<PREFACE_LEN>() {
        let _ = ClientPreface::decode(preface);
        let _ = ServerPreface::decode(preface);
    }
});
