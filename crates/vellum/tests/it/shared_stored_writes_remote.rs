//! Large writes that clients of a shared worktree put into a service by themselves, while the service is busy, loses answers, and
//! clients die.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};

use vellum_testkit::SeaweedServer;
use vellum_testkit::cluster::{DelayingRelay, RelayMode};

use crate::mounting::{Mount, detach_mount, kill, wait_until};
use crate::remote::{init, world_with_credentials};
use crate::remote_faults::attach;
use crate::world::{Ran, World};

/// Appends blocks of 1 MiB to the first file, each with `fsync`, and after that to the second one, until the first one fails or
/// there are so many.
const WRITER: &str = r#"
import os, sys
target, answered = open(sys.argv[1], "ab", 0), open(sys.argv[2], "ab", 0)
for _ in range(int(sys.argv[3])):
    block = os.urandom(1 << 20)
    target.write(block)
    os.fsync(target.fileno())
    answered.write(block)
"#;

/// A process that writes to a file of a mount, and what was acknowledged to it.
struct BlockWriter {
    process: Child,
    answered: std::path::PathBuf,
}

impl BlockWriter {
    fn start(mount: &Mount<'_>, name: &str, blocks: u32) -> Self {
        let answered = mount.world.path(&format!("{name}-answered"));
        let mut command = Command::new("python3");
        command.args(["-c", WRITER]).arg(mount.at(name)).arg(&answered).arg(blocks.to_string());
        Self { process: command.spawn().unwrap(), answered }
    }

    fn count_answered(&self) -> u64 {
        fs::metadata(&self.answered).map_or(0, |found| found.len() >> 20)
    }

    /// Waits for its end; gives what was acknowledged, and whether all was.
    fn finish(mut self) -> (Vec<u8>, bool) {
        let status = self.process.wait().unwrap();
        (fs::read(&self.answered).unwrap(), status.success())
    }
}

/// A worktree in a service, served from the world's directory.
struct RemoteWorktree<'w> {
    server: Mount<'w>,
    address: String,
    url: String,
}

impl<'w> RemoteWorktree<'w> {
    fn serve(world: &'w World, url: &str) -> Self {
        init(world, url).ok();
        let server = Mount::place(world, "work");
        let path = server.path.to_str().unwrap();
        let words = ["--json", "mount", "--shared", "work", "--listen", "127.0.0.1:0", "--allow-other"];
        let ran = world.run_at_home(&[&words[..], &["--no-io-uring", path]].concat()).ok();
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let address = report["serves"].as_str().unwrap().to_owned();
        Self { server, address, url: url.to_owned() }
    }

    /// A client that finds the store at `place`; None: where the server finds it.
    fn client(&self, name: &str, place: Option<SocketAddr>, more: &[&str]) -> Mount<'w> {
        let world = self.server.world;
        let (_, rest) = self.url.split_once("http://").unwrap();
        let direct = rest.split(['&', '/']).next().unwrap();
        let url = match place {
            Some(place) => self.url.replace(direct, &place.to_string()),
            None => self.url.clone(),
        };
        let dir = format!("{name}-state");
        attach(world, &dir, &url);
        let mount = Mount::place(world, name);
        let path = mount.path.to_str().unwrap();
        let words = ["mount", "--shared", "work", "--server", &self.address, "--allow-other"];
        world.run_beside(&dir, &[&words[..], more, &[path]].concat()).ok();
        mount
    }
}

fn umount(mount: &Mount<'_>) -> Ran {
    mount.world.run_at_home(&["umount", mount.path.to_str().unwrap()])
}

#[test]
fn what_a_client_puts_into_a_service_is_whole_whatever_happens() {
    let world = world_with_credentials();
    let service = SeaweedServer::start(&world.path("seaweed"));
    let shared = RemoteWorktree::serve(&world, &service.store_url("shared"));
    let relay = DelayingRelay::start_local((Ipv4Addr::LOCALHOST, service.port()).into());
    let stored = ["--store-writes", "256K"];
    let ann = shared.client("ann", Some(relay.address()), &stored);
    let reader = shared.client("reader", None, &[]);
    // After a failure, a client sends its writes for a while: so each trouble meets one that has had none.
    let carl = shared.client("carl", Some(relay.address()), &stored);
    relay.set_mode(RelayMode::LoseAnswers);
    let writer = BlockWriter::start(&ann, "large", 64);
    wait_until("answers were lost", || writer.count_answered() >= 16 && relay.count_faults() > 0);
    relay.set_mode(RelayMode::Pass);
    let (large, is_whole) = writer.finish();
    assert!(is_whole && large.len() == 64 << 20);
    let lost = relay.count_faults();
    relay.set_mode(RelayMode::Refuse);
    let writer = BlockWriter::start(&carl, "refused", 16);
    wait_until("the service was busy", || relay.count_faults() > lost);
    relay.set_mode(RelayMode::Pass);
    let (refused, is_whole) = writer.finish();
    assert!(is_whole && refused.len() == 16 << 20);
    // A client dies while it writes.
    let bob = shared.client("bob", None, &stored);
    let writer = BlockWriter::start(&bob, "cut", 1000);
    wait_until("it has written a part", || writer.count_answered() >= 8);
    kill(bob.pid(), "-KILL");
    let (cut, is_whole) = writer.finish();
    assert!(!is_whole);
    detach_mount(&bob.path);
    world.run_at_home(&["gc", "run"]).ok();
    for mount in [&reader, &ann, &shared.server] {
        assert!(fs::read(mount.at("large")).unwrap() == large);
        assert!(fs::read(mount.at("refused")).unwrap() == refused);
        let found = fs::read(mount.at("cut")).unwrap();
        assert!(found.get(..cut.len()) == Some(&cut[..]), "{} bytes of {}", found.len(), cut.len());
    }
    world.run_at_home(&["verify", "--all"]).ok();
    for mount in [&reader, &ann, &carl, &shared.server] {
        umount(mount).ok();
    }
    world.run_at_home(&["gc", "run"]).ok();
    world.run_at_home(&["verify", "--all"]).ok();
    let path = shared.server.path.to_str().unwrap();
    world.run_at_home(&["mount", "--worktree", "work", path]).ok();
    assert!(fs::read(shared.server.at("large")).unwrap() == large);
    umount(&shared.server).ok();
}
