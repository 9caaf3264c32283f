//! What a session holds, and when it is let go.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use vellum_cluster::client::ClientOptions;
use vellum_cluster::protocol::SessionId;
use vellum_cluster::protocol::frame::{ClientFrame, HELD_NODES_MAX};
use vellum_cluster::server::WorktreeServer;
use vellum_fuse::wire::FuseAnswer;

use crate::relay::Relay;
use crate::stand::{Kernel, PATIENCE, Shared, client_options, serve, serve_for, wait_until};

#[test]
fn requests_of_several_clients_are_answered() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let one = Kernel::connect(client_options(server.address()));
    let two = Kernel::connect(client_options(server.address()));
    assert!(one.mkdir("a").gives_entry() && two.mkdir("b").gives_entry());
    assert_eq!(shared.done(), ["+a", "+b"]);
    assert!(matches!(one.unlink("a").wait(), FuseAnswer::Done));
    let sessions = server.list_sessions();
    assert_eq!(sessions.iter().map(|session| session.requests).collect::<Vec<_>>(), [2, 1]);
    assert!(sessions.iter().all(|session| session.is_connected && session.client.host == "h1"));
    assert_eq!(one.client.command_sender().send_command(b"this").unwrap(), b"did this");
}

#[test]
fn many_large_reads_at_once_stay_within_the_limits() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    let reads: Vec<_> = (0..200).map(|_| kernel.read(1 << 20)).collect();
    for read in reads {
        assert!(matches!(read.wait(), FuseAnswer::Bytes(bytes) if bytes.len() == 1 << 20));
    }
}

#[test]
fn what_the_kernel_forgets_is_let_go() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    ["a1", "a2", "a3"].into_iter().for_each(|name| assert!(kernel.lookup(name).gives_entry()));
    assert!(kernel.lookup("b").gives_entry());
    assert_eq!(shared.held(), [(97, 3), (98, 1)]);
    kernel.forget(97, 2);
    kernel.forget(98, 1);
    // Told with the next request.
    assert!(kernel.lookup("c").gives_entry());
    wait_until("b is let go", || shared.held() == [(97, 3), (99, 1)]);
    kernel.forget(97, 1);
    assert!(kernel.lookup("c2").gives_entry());
    wait_until("a is let go", || shared.held() == [(99, 2)]);
}

#[test]
fn what_a_client_holds_goes_when_it_is_unmounted() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let one = Kernel::connect(client_options(server.address()));
    let two = Kernel::connect(client_options(server.address()));
    assert!(one.lookup("a").gives_entry() && two.lookup("a").gives_entry() && one.lookup("b").gives_entry());
    drop(one);
    wait_until("what it held is let go", || shared.held() == [(97, 1)]);
    assert_eq!(server.list_sessions().len(), 1);
    assert!(two.lookup("c").gives_entry());
}

#[test]
fn what_a_silent_client_holds_goes_after_the_term() {
    let shared = Arc::new(Shared::default());
    let server = serve_for(&shared, Duration::from_millis(300));
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    assert!(kernel.lookup("a").gives_entry());
    // Nobody listens there.
    relay.redirect("127.0.0.1:1".parse().unwrap());
    relay.cut();
    wait_until("the session has ended", || server.list_sessions().is_empty());
    wait_until("what it held is let go", || shared.held().is_empty());
    // It comes back, and its kernel knows the node still.
    relay.redirect(server.address());
    assert!(kernel.lookup("b").gives_entry());
    assert_eq!(shared.held(), [(97, 1), (98, 1)]);
}

/// What it was granted is free since its session has ended, and others may have it.
#[test]
fn a_lock_whose_answer_was_lost_is_asked_for_again_in_a_new_session() {
    let shared = Arc::new(Shared::default());
    let server = serve_for(&shared, Duration::from_millis(300));
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    assert!(kernel.mkdir("a").gives_entry());
    relay.lose_answers();
    let locked = kernel.lock(97);
    let made = kernel.mkdir("b");
    wait_until("both are done", || shared.done().len() == 3);
    relay.redirect("127.0.0.1:1".parse().unwrap());
    relay.cut();
    wait_until("the session has ended", || server.list_sessions().is_empty());
    relay.redirect(server.address());
    assert!(matches!(locked.wait(), FuseAnswer::Done) && made.gives_entry());
    let count = |name| shared.done().iter().filter(|done| *done == name).count();
    assert_eq!(["locked", "+b"].map(count), [2, 1]);
}

#[test]
fn an_evicted_client_begins_anew() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    assert!(kernel.lookup("a").gives_entry());
    let session = kernel.client.session();
    assert!(server.evict_session(session));
    assert!(!server.evict_session(vellum_cluster::protocol::SessionId::NONE));
    wait_until("it is back", || server.list_sessions().len() == 1);
    assert!(kernel.lookup("b").gives_entry());
    assert_eq!(shared.held(), [(97, 1), (98, 1)]);
}

/// Bytes that a client sends before it names what it holds: the preface, the handshake, and who it is.
fn measure_introduction(options: &ClientOptions) -> usize {
    let hello = ClientFrame::Hello { session: SessionId::NONE, client: options.description.clone() };
    16 + 48 + measure_record(hello.encode().len())
}

/// Bytes of a frame as it is sent: with two lengths, and what proves that it is whole.
fn measure_record(frame: usize) -> usize {
    2 + 4 + frame + 16
}

/// Evicts the client, of which only so many bytes arrive when it begins anew; then the connection breaks, and works.
fn begin_anew_with_few_bytes(
    kernel: &Kernel,
    server: &WorktreeServer,
    relay: &Relay,
    bytes: usize,
    shared: &Shared,
) {
    relay.limit_requests(bytes);
    let begun = shared.begun();
    assert!(server.evict_session(kernel.client.session()));
    wait_until("the session begins anew", || shared.begun() > begun && kernel.client.is_connected());
    // Until the client has sent all that it can: it goes on when the first frames are behind it.
    std::thread::sleep(Duration::from_millis(200));
    relay.limit_requests(usize::MAX);
    relay.cut();
}

#[test]
fn a_client_that_could_not_say_what_it_holds_is_not_taken_for_resumed() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let options = client_options(relay.address);
    let introduction = measure_introduction(&options);
    let kernel = Kernel::connect(options);
    assert!(kernel.lookup("a").gives_entry() && kernel.lookup("b").gives_entry());
    begin_anew_with_few_bytes(&kernel, &server, &relay, introduction, &shared);
    assert!(kernel.lookup("c").gives_entry());
    assert_eq!(shared.held(), [(97, 1), (98, 1), (99, 1)]);
}

#[test]
fn a_client_says_the_rest_of_what_it_holds_over_the_next_connection() {
    const NODES: u64 = 5000;
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let options = client_options(relay.address);
    let introduction = measure_introduction(&options);
    let kernel = Kernel::connect(options);
    let lookups: Vec<_> = (1000..1000 + NODES).map(|node| kernel.lookup(&format!("#{node}"))).collect();
    lookups.into_iter().for_each(|lookup| assert!(lookup.gives_entry()));
    let first = measure_record(1 + 4 + 8 * HELD_NODES_MAX);
    begin_anew_with_few_bytes(&kernel, &server, &relay, introduction + first, &shared);
    assert!(kernel.lookup("c").gives_entry());
    let all: Vec<_> = std::iter::once((99, 1)).chain((1000..1000 + NODES).map(|node| (node, 1))).collect();
    assert_eq!(shared.held(), all);
    // Each is let go when its kernel forgets it.
    (1000..1000 + NODES).for_each(|node| kernel.forget(node, 1));
    assert!(kernel.lookup("d").gives_entry());
    wait_until("all are let go", || shared.held() == [(99, 1), (100, 1)]);
}

#[test]
fn who_serves_next_is_told_when_the_server_ends() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (named, is_named) = channel();
    let connect = |name: &'static str| {
        let named = named.clone();
        let options = client_options(server.address());
        Kernel::connect(ClientOptions {
            named_successor: Arc::new(move || named.send(name).unwrap()),
            ..options
        })
    };
    let [one, two] = ["one", "two"].map(connect);
    assert!([&one, &two].map(|kernel| kernel.lookup("a").gives_entry()) == [true; 2]);
    server.name_successor(two.client.session());
    drop(server);
    assert_eq!(is_named.recv_timeout(PATIENCE), Ok("two"));
    assert!(is_named.recv_timeout(Duration::from_millis(100)).is_err());
}

#[test]
fn a_server_that_may_have_been_replaced_answers_nothing() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    assert!(kernel.mkdir("a").gives_entry());
    shared.close();
    let late = kernel.mkdir("b");
    shared.wait_until_waiting(1);
    shared.fence();
    shared.open();
    wait_until("its client is gone", || !kernel.client.is_connected());
    assert_eq!(shared.done(), ["+a", "+b"]);
    // Who serves next has not seen the request.
    let next = Arc::new(Shared::default());
    let successor = serve(&next);
    relay.redirect(successor.address());
    relay.cut();
    assert!(late.gives_entry());
    assert_eq!(next.done(), ["+b"]);
}
