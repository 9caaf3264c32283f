//! Connections that break and services that fail now and then: how often requests are repeated, and what is sent twice.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use vellum_testkit::{LyingS3, S3Failure, S3Lie, S3Match, SeaweedServer, TcpRelay};

use crate::mounting::wait_until;
use crate::remote::{every, init, world_with_credentials};
use crate::remote_faults::{attach, finish, spawn_in};
use crate::world::{Ran, World, noise};

/// Runs a command with a log of what it does.
fn run_logged(world: &World, args: &[&str]) -> Ran {
    let mut command = world.command_at_home(args);
    Ran::of(args, command.env("VELLUM_LOG", "debug").output().unwrap())
}

/// How many requests a command repeated, by its log.
fn count_repeats(ran: &Ran) -> usize {
    ran.err.matches("store request is repeated").count()
}

/// A mount of a worktree of a volume in a service.
struct ServiceMount<'a> {
    world: &'a World,
}

impl<'a> ServiceMount<'a> {
    fn new(world: &'a World) -> Self {
        let mount = Self { world };
        fs::create_dir(world.path("mnt")).unwrap();
        world.run_at_home(&["mount", &world.path("mnt").display().to_string()]).ok();
        mount
    }

    /// The sum of a counter over its labels.
    fn sum_counter(&self, name: &str) -> f64 {
        let text = fs::read_to_string(self.world.path("mnt/.vellum/stats")).unwrap();
        let samples = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }
}

impl Drop for ServiceMount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.world.path("mnt")).output();
    }
}

#[test]
fn every_tenth_request_fails_and_the_figures_show_the_repeats() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    init(&world, &server.store_url("store")).ok();
    for number in 0..60 {
        world.write(&format!("dir-{}/{number}", number % 5), noise(100_000 + number * 1_000));
    }
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let mount = ServiceMount::new(&world);
    let before = mount.sum_counter("vellum_service_retries_total");
    // Each of these counts the requests to which no other one replied.
    for number in 1..40 {
        let tenth = S3Match { skip: 9 * number, times: 1, ..every("ANY") };
        server.add_lie(tenth, S3Lie::Fail(S3Failure::new(500, "InternalError")));
    }
    for number in 0..60 {
        let found = fs::read(world.path(&format!("mnt/dir-{}/{number}", number % 5))).unwrap();
        assert!(found == noise(100_000 + number * 1_000), "file {number}");
    }
    let mut repeats = 0;
    for number in 0..8 {
        fs::write(world.path(&format!("mnt/new-{number}")), noise(200_000 + number)).unwrap();
        let mut flush = world.command_at_home(&["flush"]);
        flush.env("VELLUM_LOG", "debug").current_dir(world.path("mnt"));
        // The command has requests of its own.
        repeats += count_repeats(&Ran::of(&["flush"], flush.output().unwrap()).ok());
    }
    let told = server.count_told_lies();
    let retries = mount.sum_counter("vellum_service_retries_total") - before;
    server.tell_truth();
    assert!(told >= 4, "{told} of {} requests failed", server.take_requests().len());
    assert_eq!(retries + repeats as f64, told as f64);
    assert!(retries > 0.0);
    world.run_at_home(&["umount", &world.path("mnt").display().to_string()]).ok();
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
fn a_service_that_has_no_capacity_for_a_while_is_not_flooded() {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    init(&world, &server.store_url("store")).ok();
    for number in 0..8_u8 {
        let content: Vec<_> = noise(6_000_000).iter().map(|byte| byte ^ number).collect();
        world.write(&format!("file-{number}"), content);
    }
    let _ = server.take_requests();
    server.add_lie(every("ANY"), S3Lie::Fail(S3Failure::new(503, "SlowDown")));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run_logged(&world, &["snapshot", "-m", "one"]));
        wait_until("the service has been busy for 3 s", || begun.elapsed() > Duration::from_secs(3));
        server.tell_truth();
        let refused = server.count_told_lies();
        let ran = running.join().unwrap().ok();
        // With one request after the other and pauses that double, few fit into the time.
        assert!((2..60).contains(&refused), "{refused} requests in vain");
        assert_eq!(count_repeats(&ran), refused);
    });
    world.run_at_home(&["verify", "--all"]).ok();
}

#[test]
fn an_unknown_name_is_not_tried_again_and_a_refused_connection_is() {
    let world = world_with_credentials();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let add = |endpoint: &str| {
        let url = format!("s3://bucket/store?endpoint={endpoint}&region=test");
        run_logged(&world, &["init", "--plain", "--store", &url, "--credentials", "test"])
    };
    let begun = Instant::now();
    let ran =
        add("https://no-such-host.invalid").code(2).remarks("'no-such-host.invalid' cannot be resolved");
    assert_eq!(count_repeats(&ran), 0);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let refused = add(&format!("http://127.0.0.1:{free}")).code(2).remarks("127.0.0.1").remarks("refused");
    assert!(count_repeats(&refused) >= 3, "{}", refused.err);
    assert!(!world.has(".vellum"));
}

#[test]
fn a_service_that_is_out_of_reach_is_named_and_tried_again() {
    let world = world_with_credentials();
    let init = ["init", "--plain", "--credentials", "test", "--retry-for", "1s", "--store"];
    // Without a network, no address can be reached; with a route that refuses it, one cannot.
    for (network, host, words) in [
        ("true", "127.0.0.1:9", "Network is unreachable"),
        ("ip link set lo up; ip route add unreachable 10.9.0.0/16", "10.9.0.1", "No route to host"),
    ] {
        let url = format!("s3://bucket/store?endpoint=http://{host}&region=test&allow-http");
        let args: Vec<_> = init.into_iter().chain([url.as_str()]).collect();
        let own = world.command_at_home(&args);
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &format!("{network}; exec \"$@\""), "sh"]);
        command.arg(own.get_program()).args(own.get_args()).current_dir(world.tree()).env_clear();
        command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ran = Ran::of(&args, command.env("VELLUM_LOG", "debug").output().unwrap()).code(2);
        let ran = ran.remarks(host.split(':').next().unwrap()).remarks(words);
        // A network can come back.
        assert!(count_repeats(&ran) >= 1, "{}", ran.err);
        assert!(!world.has(".vellum"));
    }
}

#[test]
fn connections_that_are_reset_in_a_put_are_made_again() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let url = server.store_url("reset");
    let relay = TcpRelay::start(&url);
    init(&world, relay.store_url()).ok();
    let mut content = noise(2_000_000);
    for (round, at) in [1_u64, 40_000, 700_000, 1_900_000].into_iter().enumerate() {
        // Other content in each round, so that all of it is sent.
        content.iter_mut().for_each(|byte| *byte ^= 0x55 + round as u8);
        world.write("file", &content);
        relay.reset_after(at);
        let ran = run_logged(&world, &["snapshot", "-m", "round"]).ok();
        assert_eq!(relay.count_resets() as usize, round + 1);
        // A connection that was idle is replaced by the transport itself.
        assert!(count_repeats(&ran) <= 1, "{}", ran.err);
        assert!(world.run_at_home(&["cat", "HEAD", "file"]).ok().raw == content, "reset after {at} bytes");
    }
    // Everything is there once: nothing is found that no index names.
    world.run_at_home(&["gc", "run"]).ok().says("Nothing to free");
    attach(&world, "direct", &url);
    world.run_beside("direct", &["verify", "--all"]).ok();
}

#[test]
fn connections_that_are_reset_in_a_get_are_made_again() {
    let world = world_with_credentials();
    let server = SeaweedServer::start(&world.path("seaweed"));
    let relay = TcpRelay::start(&server.store_url("reset"));
    init(&world, relay.store_url()).ok();
    let content = noise(3_000_000);
    world.write("file", &content);
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    for (round, at) in [1_u64, 30_000, 400_000, 1_500_000, 2_900_000].into_iter().enumerate() {
        relay.reset_answer_after(at);
        // Without a cache, all of it is fetched in each round.
        let ran = run_logged(&world, &["cat", "HEAD", "file"]).ok();
        assert_eq!(relay.count_resets() as usize, round + 1, "reset after {at} bytes");
        assert!(ran.raw == content, "reset after {at} bytes");
        // A connection that was idle is replaced by the transport itself.
        assert!(count_repeats(&ran) <= 1, "{}", ran.err);
    }
    world.run_at_home(&["verify", "--all"]).ok();
}

/// What was sent to a service that paused in the middle of a push.
struct PausedPush {
    /// Bytes that clients sent.
    sent: u64,
    /// Bytes that they send without a pause.
    usual: u64,
    /// Objects that had arrived before the pause and were sent again: their answers had not come.
    sent_again: Vec<String>,
    /// The other objects that were sent more than once.
    repeated: Vec<String>,
}

fn push_with_a_pause(pause: Duration) -> PausedPush {
    let server = LyingS3::start().unwrap();
    let world = world_with_credentials();
    world.run_at_home(&["init", "--plain", "--name", "main"]).ok();
    world.write("big", noise(24_000_000));
    world.run_at_home(&["snapshot", "-m", "one"]).ok();
    let relays = ["whole", "held"].map(|name| (name, TcpRelay::start(&server.store_url(name))));
    let [whole, held] = relays.map(|(name, relay)| {
        let add = ["remote", "add", name, relay.store_url(), "--credentials", "test"];
        world.run_at_home(&add).ok();
        relay
    });
    let before = whole.count_sent_bytes();
    world.run_at_home(&["push", "whole"]).ok();
    let usual = whole.count_sent_bytes() - before;
    let before = held.count_sent_bytes();
    let list_puts = || -> Vec<String> {
        let requests = server.take_requests().into_iter();
        requests.filter(|request| request.method == "PUT").map(|request| request.key).collect()
    };
    let _ = server.take_requests();
    held.hold_after(8_000_000);
    let push = spawn_in(&world, "tree", &["push", "held"]);
    wait_until("the push is held", || held.is_held());
    let arrived = list_puts();
    std::thread::sleep(pause);
    held.release();
    finish(push).ok().says("Sent 1 snapshot");
    let sent = held.count_sent_bytes() - before;
    let later = list_puts();
    let sent_again = later.iter().filter(|key| arrived.contains(key)).cloned().collect();
    let is_repeated = |key: &&String| later.iter().filter(|other| other == key).count() > 1;
    let repeated: BTreeSet<_> = later.iter().filter(is_repeated).cloned().collect();
    world.run_at_home(&["push", "held"]).ok().says("lacks no snapshot");
    PausedPush { sent, usual, sent_again, repeated: repeated.into_iter().collect() }
}

#[test]
fn a_push_goes_on_after_a_pause_of_the_service_and_sends_nothing_twice() {
    // Shorter than a service may be silent: nothing need be sent again.
    let PausedPush { sent, usual, sent_again, repeated } = push_with_a_pause(Duration::from_secs(2));
    assert!(sent < usual + usual / 50, "{sent} bytes, and {usual} without the pause");
    assert!(sent_again.is_empty() && repeated.is_empty(), "{sent_again:?} {repeated:?}");
}

#[test]
#[ignore = "long"]
fn a_push_goes_on_after_a_minute_and_sends_only_what_was_under_way_again() {
    // Requests count as failed after 10 seconds of silence.
    let PausedPush { sent, usual, sent_again, repeated } = push_with_a_pause(Duration::from_secs(60));
    // Those whose answers had not come when it paused: as many as are put together.
    let under_way: BTreeSet<_> = sent_again.iter().chain(&repeated).collect();
    assert!(under_way.len() <= 8, "{under_way:?}");
    assert!(sent < 3 * usual, "{sent} bytes, and {usual} without the pause");
}
