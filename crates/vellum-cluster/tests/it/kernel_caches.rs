//! What clients let their kernels cache, and that these drop it before a recall is confirmed.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vellum_cluster::protocol::LEASE_TERM;
use vellum_fuse::wire::FuseAnswer;

use crate::relay::Relay;
use crate::stand::{Kernel, Shared, client_options, serve, wait_until};

/// Long enough for a change that does not wait.
const MOMENT: Duration = Duration::from_millis(100);

/// Waits until a name may be cached.
fn wait_for_name(kernel: &Kernel, name: &str) {
    wait_until("names may be cached", || kernel.lookup(name).entry_seconds() > Some(0));
}

#[test]
fn a_kernel_may_cache_what_was_granted_for_no_longer_than_that() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (kernel, told) = Kernel::connect_caching(client_options(server.address()));
    wait_for_name(&kernel, "a");
    let entry = kernel.lookup("a").entry_seconds();
    assert!(entry > Some(0) && entry < Some(5), "{entry:?}");
    wait_until("attributes may be cached", || kernel.attributes(1).attribute_seconds() > Some(0));
    assert!(kernel.attributes(1).attribute_seconds() < Some(5));
    // A kernel that is not attached is told to cache nothing.
    let other = Kernel::connect(client_options(server.address()));
    wait_until("it is connected", || other.client.is_connected());
    std::thread::sleep(MOMENT);
    assert_eq!(other.lookup("a").entry_seconds(), Some(0));
    assert!(told.take_told().is_empty());
}

#[test]
fn a_change_waits_until_the_kernels_of_others_have_dropped_what_it_changes() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (one, told) = Kernel::connect_caching(client_options(server.address()));
    let two = Kernel::connect(client_options(server.address()));
    wait_for_name(&one, "a");
    wait_until("attributes may be cached", || one.attributes(1).attribute_seconds() > Some(0));
    told.hold();
    let unlinked = two.unlink("a");
    std::thread::sleep(MOMENT);
    assert!(shared.done().is_empty());
    // Meanwhile requests are answered, and let the kernel cache nothing of this.
    assert_eq!(one.lookup("a").entry_seconds(), Some(0));
    assert_eq!(one.attributes(1).attribute_seconds(), Some(0));
    told.let_go();
    assert!(matches!(unlinked.wait(), FuseAnswer::Done));
    let mut dropped = told.take_told();
    dropped.sort_unstable();
    assert_eq!(dropped, [None, Some(1)]);
    wait_for_name(&one, "a");
}

#[test]
fn a_kernel_keeps_its_names_when_it_changes_the_directory_itself() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (one, told) = Kernel::connect_caching(client_options(server.address()));
    wait_for_name(&one, "a");
    assert!(one.mkdir("b").gives_entry());
    assert!(told.take_told().is_empty());
    // Its attributes are dropped before the change is sent.
    wait_until("attributes may be cached", || one.attributes(1).attribute_seconds() > Some(0));
    told.hold();
    let made = one.mkdir("c");
    std::thread::sleep(MOMENT);
    assert_eq!(shared.done(), ["+b"]);
    told.let_go();
    assert!(made.gives_entry());
    assert_eq!(told.take_told(), [Some(1)]);
    // The names are still granted, so that others wait for them.
    let two = Kernel::connect(client_options(server.address()));
    assert!(two.mkdir("d").gives_entry());
    assert_eq!(told.take_told(), [None]);
    assert!(two.mkdir("e").gives_entry());
    assert!(told.take_told().is_empty());
}

#[test]
fn all_names_are_dropped_before_one_moves_to_another_directory() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (kernel, told) = Kernel::connect_caching(client_options(server.address()));
    wait_for_name(&kernel, "a");
    // The stand renames nothing, but the client does not know that before.
    kernel.rename_away("a", 1).wait();
    assert!(told.take_told().is_empty());
    wait_for_name(&kernel, "a");
    kernel.rename_away("a", 98).wait();
    assert_eq!(told.take_told(), [None]);
}

#[test]
fn a_lost_connection_drops_everything_before_there_is_another_one() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let relay = Relay::to(server.address());
    let (kernel, told) = Kernel::connect_caching(client_options(relay.address));
    wait_for_name(&kernel, "a");
    wait_until("attributes may be cached", || kernel.attributes(1).attribute_seconds() > Some(0));
    told.hold();
    relay.cut();
    wait_until("the loss is noticed", || !kernel.client.is_connected());
    std::thread::sleep(MOMENT);
    assert!(!kernel.client.is_connected());
    told.let_go();
    wait_until("it is connected again", || kernel.client.is_connected());
    assert_eq!(told.take_told(), [None, Some(1)]);
}

#[test]
fn what_a_kernel_has_forgotten_is_held_as_long_as_it_may_learn_of_it_again() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (one, _told) = Kernel::connect_caching(client_options(server.address()));
    let two = Kernel::connect(client_options(server.address()));
    let node = u64::from(b'a');
    let counted = Cell::new(0);
    wait_until("names may be cached", || {
        counted.set(counted.get() + 1);
        one.lookup("a").entry_seconds() > Some(0)
    });
    one.forget(node, counted.get());
    // It is named again without the server.
    let asked = || server.list_sessions().iter().map(|session| session.requests).sum::<u64>();
    let before = asked();
    assert!(one.lookup("a").gives_entry());
    assert_eq!(asked(), before);
    one.forget(node, 1);
    assert!(matches!(two.unlink("a").wait(), FuseAnswer::Done));
    wait_until("it is let go", || shared.held().is_empty());
}

#[test]
fn names_are_left_to_expire_if_something_is_mounted_in_the_mount() {
    let shared = Arc::new(Shared::default());
    let server = serve(&shared);
    let (one, told) = Kernel::connect_caching(client_options(server.address()));
    let two = Kernel::connect(client_options(server.address()));
    wait_for_name(&one, "a");
    told.add_mount();
    let begun = Instant::now();
    assert!(matches!(two.unlink("a").wait(), FuseAnswer::Done));
    // The client has confirmed it, and keeps its session.
    assert!(begun.elapsed() >= LEASE_TERM && server.list_sessions().len() == 2);
    assert_eq!(one.lookup("b").entry_seconds(), Some(0));
    assert!(told.take_told().is_empty());
    assert!(matches!(two.unlink("b").wait(), FuseAnswer::Done));
}
