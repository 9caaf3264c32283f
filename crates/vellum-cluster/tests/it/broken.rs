//! Connections that break, and servers that go away.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vellum_cluster::client::ClientOptions;
use vellum_fuse::wire::FuseAnswer;

use crate::relay::Relay;
use crate::stand::{GONE, Kernel, Shared, client_options, serve, wait_until};

#[test]
fn a_change_that_is_under_way_when_the_connection_breaks_is_made_once() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    shared.close();
    let made = kernel.mkdir("a");
    shared.wait_until_waiting(1);
    relay.cut();
    // It is connected again before the change is made.
    assert!(kernel.lookup("b").gives_entry());
    shared.open();
    assert!(made.gives_entry());
    assert_eq!(shared.done(), ["+a"]);
    assert_eq!(shared.held(), [(97, 1), (98, 1)]);
}

#[test]
fn a_change_whose_answer_is_lost_is_made_once() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    relay.lose_answers();
    let made: Vec<_> = (0..20).map(|number| kernel.mkdir(&format!("a{number}"))).collect();
    wait_until("all are made", || shared.done().len() == 20);
    relay.cut();
    assert!(made.into_iter().all(crate::stand::Pending::gives_entry));
    assert_eq!(shared.done().len(), 20);
    assert_eq!(shared.held(), [(97, 20)]);
}

#[test]
fn requests_wait_for_a_server_that_comes_back() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    assert!(kernel.lookup("a").gives_entry());
    drop(server);
    assert!(shared.held().is_empty());
    let waiting = kernel.mkdir("b");
    relay.cut();
    let next = serve(&shared);
    relay.redirect(next.address());
    assert!(waiting.gives_entry());
    assert_eq!(shared.done(), ["+b"]);
    // What the kernel knew before is held by the new server, too.
    assert_eq!(shared.held(), [(97, 1), (98, 1)]);
}

#[test]
fn a_change_that_an_earlier_process_has_made_is_not_made_again() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    wait_until("the server has named its session", || kernel.client.session().0 != [0; 16]);
    let session = kernel.client.session();
    relay.redirect("127.0.0.1:1".parse().unwrap());
    relay.cut();
    let made = kernel.mkdir("a");
    let removed = kernel.unlink("b");
    let new = kernel.mkdir("c");
    // As if the server had died before it could answer: requests are numbered from 1.
    shared.mark(session, 1);
    shared.mark(session, 2);
    drop(server);
    let next = serve(&shared);
    relay.redirect(next.address());
    assert!(made.gives_entry() && new.gives_entry());
    assert!(matches!(removed.wait(), FuseAnswer::Done));
    assert_eq!(shared.done(), ["+c"]);
    assert_eq!(kernel.client.session(), session);
}

/// `ESTALE` would have the kernel make it a second time.
#[test]
fn what_an_earlier_process_has_made_and_another_client_removed_is_not_made_again() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let kernel = Kernel::connect(client_options(relay.address));
    wait_until("the server has named its session", || kernel.client.session().0 != [0; 16]);
    relay.redirect("127.0.0.1:1".parse().unwrap());
    relay.cut();
    let made = kernel.mkdir(GONE);
    shared.mark(kernel.client.session(), 1);
    drop(server);
    let next = serve(&shared);
    relay.redirect(next.address());
    assert!(matches!(made.wait(), FuseAnswer::Failed(Errno::IO)));
    assert!(shared.done().is_empty());
}

#[test]
fn requests_fail_when_they_have_waited_long_enough() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let options = ClientOptions { wait: Duration::from_millis(200), ..client_options(relay.address) };
    let kernel = Kernel::connect(options);
    relay.redirect("127.0.0.1:1".parse().unwrap());
    relay.cut();
    assert!(matches!(kernel.mkdir("a").wait(), FuseAnswer::Failed(Errno::IO)));
    relay.redirect(server.address());
    wait_until("it is connected again", || kernel.client.is_connected());
    assert!(kernel.mkdir("b").gives_entry());
}

#[test]
fn requests_fail_when_the_client_ends() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let kernel = Kernel::connect(client_options(server.address()));
    shared.close();
    let waiting = kernel.mkdir("a");
    shared.wait_until_waiting(1);
    drop(kernel);
    assert!(matches!(waiting.wait(), FuseAnswer::Failed(Errno::IO)));
    shared.open();
}
