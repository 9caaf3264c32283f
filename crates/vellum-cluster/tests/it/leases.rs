//! What clients answer by themselves, and when they cease to.

use std::sync::Arc;
use std::time::Duration;

use vellum_cluster::protocol::SESSION_TERM;
use vellum_cluster::protocol::frame::{ClientFrame, ServerFrame};
use vellum_cluster::protocol::lease::Lease;
use vellum_cluster::server::{LeaseTable, WorktreeServer};
use vellum_fuse::wire::FuseAnswer;

use crate::hostile::{introduce, request};
use crate::relay::Relay;
use crate::stand::{Kernel, LOOKUP, Shared, client_options, serve, serve_with, wait_until};

fn requests(server: &WorktreeServer) -> u64 {
    server.list_sessions().iter().map(|session| session.requests).sum()
}

/// Looks a name up; gives whether the server was asked.
fn asks(server: &WorktreeServer, kernel: &Kernel, name: &str) -> bool {
    let before = requests(server);
    assert!(kernel.lookup(name).gives_entry());
    requests(server) > before
}

#[test]
fn what_was_looked_up_is_answered_without_the_server_until_it_is_changed() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let one = Kernel::connect(client_options(server.address()));
    let two = Kernel::connect(client_options(server.address()));
    wait_until("answers are kept", || !asks(&server, &one, "a"));
    (0..100).for_each(|_| assert!(!asks(&server, &one, "a")));
    assert!(matches!(two.unlink("a").wait(), FuseAnswer::Done));
    assert!(asks(&server, &one, "a"));
    assert!(!asks(&server, &one, "a"));
    // A change of its own.
    assert!(one.mkdir("b").gives_entry());
    assert!(asks(&server, &one, "a"));
    assert!(!asks(&server, &one, "a"));
}

#[test]
fn a_lost_connection_ends_what_was_granted() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    wait_until("answers are kept", || !asks(&server, &kernel, "a"));
    relay.cut();
    wait_until("the loss is noticed", || asks(&server, &kernel, "a"));
    wait_until("answers are kept again", || !asks(&server, &kernel, "a"));
}

#[test]
fn who_does_not_answer_a_recall_is_evicted_and_the_change_goes_on() {
    let shared = Arc::new(Shared::default());
    let leases = Arc::new(LeaseTable::with_recall_time(Duration::from_millis(100)));
    let server = serve_with(&shared, SESSION_TERM, leases);
    let mut silent = introduce(&server);
    silent.writer.write_frame(&request(1, LOOKUP, b"a\0")).unwrap();
    silent.writer.flush().unwrap();
    let mut frame = Vec::new();
    silent.reader.read_frame(&mut frame).unwrap();
    assert!(matches!(ServerFrame::decode(&frame), Ok(ServerFrame::Answer { is_leased: true, .. })));
    let kernel = Kernel::connect(client_options(server.address()));
    assert!(matches!(kernel.unlink("a").wait(), FuseAnswer::Done));
    silent.reader.read_frame(&mut frame).unwrap();
    assert!(matches!(ServerFrame::decode(&frame), Ok(ServerFrame::Recall { .. })));
    wait_until("it is evicted", || server.list_sessions().len() == 1);
}

#[test]
fn giving_back_what_was_never_granted_harms_nobody() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    wait_until("answers are kept", || !asks(&server, &kernel, "a"));
    let mut other = introduce(&server);
    for frame in [ClientFrame::Return(vec![Lease::Names(1)]), ClientFrame::Recalled { number: 1 }] {
        other.writer.write_frame(&frame.encode()).unwrap();
    }
    other.writer.write_frame(&request(1, LOOKUP, b"b\0")).unwrap();
    other.writer.flush().unwrap();
    other.reader.read_frame(&mut Vec::new()).unwrap();
    assert!(!asks(&server, &kernel, "a"));
    assert!(matches!(kernel.unlink("a").wait(), FuseAnswer::Failed(_) | FuseAnswer::Done));
}

#[test]
fn a_server_that_may_have_been_replaced_prolongs_nothing() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    wait_until("answers are kept", || !asks(&server, &kernel, "a"));
    shared.fence();
    // It is asked again when the term of what it has granted is over, and answers nothing.
    wait_until("its client is gone", || {
        drop(kernel.lookup("a"));
        !kernel.client.is_connected()
    });
}
