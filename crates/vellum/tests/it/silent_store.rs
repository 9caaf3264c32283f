//! Mounts of volumes in services that do not answer any more: what is here goes on, and what is not fails in time.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vellum_testkit::S3Lie;

use crate::hydrate::{LazyMount, noise};
use crate::mounting::{kill, wait_until};
use crate::remote::{every, world_with_credentials};

/// For how long nothing is sent after the service did not answer.
const BREAK: Duration = Duration::from_secs(5);

/// A service stops in the middle of a read, of which a mount with these options gives up after `budget`.
fn read_without_the_service(options: &[&str], budget: Duration) {
    let here = noise(1, 300_000);
    let files = [("here", here.clone()), ("there", noise(2, 800_000)), ("other", noise(3, 800_000))];
    let lazy = LazyMount::in_world(world_with_credentials(), &files);
    lazy.run(&["hydrate", "here"]).ok();
    lazy.umount();
    lazy.mount_with(options);
    lazy.run(&["hydrate", ".", "--metadata-only"]).ok();
    for method in ["GET", "HEAD", "LIST", "PUT"] {
        lazy.server.add_lie(every(method), S3Lie::Hang);
    }
    let is_eio = |read: io::Result<Vec<u8>>| assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let reading = scope.spawn(|| fs::read(lazy.path("there")));
        let mut reads = 0;
        while !reading.is_finished() {
            assert!(fs::read(lazy.path("here")).unwrap() == here);
            assert_eq!(fs::metadata(lazy.path("other")).unwrap().len(), 800_000);
            reads += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        let took = begun.elapsed();
        is_eio(reading.join().unwrap());
        assert!(took >= budget, "{took:?}");
        assert!(reads >= 10, "it was read {reads} times in {took:?}");
    });
    // The service is not asked for a while.
    let _ = lazy.server.take_requests();
    let begun = Instant::now();
    is_eio(fs::read(lazy.path("other")));
    let asked = lazy.server.take_requests().len();
    assert!(asked == 0 || begun.elapsed() >= BREAK, "{asked} requests");
    let mut logs = fs::read_dir(lazy.world.tree().join(".vellum/live")).unwrap();
    let log = fs::read_to_string(logs.next().unwrap().unwrap().path().join("daemon.log")).unwrap();
    let told: Vec<_> = log.lines().filter(|line| line.contains(": ") && line.contains("other")).collect();
    assert!(!told.is_empty(), "{log}");
    lazy.server.tell_truth();
    wait_until("it answers again", || fs::read(lazy.path("there")).is_ok_and(|read| read == files[1].1));
    assert!(fs::read(lazy.path("other")).unwrap() == files[2].1);
}

#[test]
fn what_is_here_is_read_while_a_read_waits_for_a_silent_service() {
    read_without_the_service(&["--retry-for", "4s"], Duration::from_secs(4));
}

#[test]
#[ignore = "soak: it waits for a minute, as mounts do"]
fn a_read_waits_a_minute_for_a_silent_service() {
    read_without_the_service(&[], Duration::from_secs(60));
}

#[test]
fn a_mount_is_ended_as_soon_as_its_service_answers_again() {
    let lazy = mount_of_silent_service();
    lazy.server.tell_truth();
    // Reads are not sent for some seconds more, but whoever ends the mount does not come again.
    let begun = Instant::now();
    lazy.umount();
    assert!(begun.elapsed() < BREAK, "{:?}", begun.elapsed());
    lazy.mount();
    assert_eq!(fs::read_to_string(lazy.path("new")).unwrap(), "new");
}

/// A mount of a service that has not answered a request a moment ago, with something that is not in the store.
fn mount_of_silent_service() -> LazyMount {
    let files = [("there", noise(2, 800_000))];
    let lazy = LazyMount::in_world(world_with_credentials(), &files);
    lazy.umount();
    lazy.mount_with(&["--retry-for", "1s"]);
    lazy.run(&["hydrate", ".", "--metadata-only"]).ok();
    for method in ["GET", "HEAD", "LIST", "PUT"] {
        lazy.server.add_lie(every(method), S3Lie::Hang);
    }
    fs::write(lazy.path("new"), "new").unwrap();
    assert_eq!(fs::read(lazy.path("there")).unwrap_err().raw_os_error(), Some(5));
    lazy
}

/// Starts the binary in the mount.
fn start_in(lazy: &LazyMount, args: &[&str]) -> Child {
    let mut command = lazy.world.command_at_home(args);
    command.env("XDG_CACHE_HOME", lazy.world.path("cache")).current_dir(lazy.mountpoint());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn who_waits_for_the_store_waits_for_a_service_that_does_not_answer() {
    let commands: [(&[&str], &str); 2] =
        [(&["flush"], "everything is in the store"), (&["snapshot", "--wait"], "in the store")];
    for (args, said) in commands {
        let lazy = mount_of_silent_service();
        let mut waiting = start_in(&lazy, args);
        // It is told that it waits, and why.
        let mut told = BufReader::new(waiting.stderr.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert!(line.contains("trying again, Ctrl-C stops"), "{line}");
        assert!(waiting.try_wait().unwrap().is_none());
        lazy.server.tell_truth();
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        let done = waiting.wait_with_output().unwrap();
        let shown = rest + &String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success() && shown.contains(said), "{shown}");
        lazy.run_in(&lazy.world.tree(), &["verify", "--all"]).ok();
    }
}

#[test]
fn who_waits_for_the_store_can_be_interrupted_and_is_told_for_how_long() {
    let lazy = mount_of_silent_service();
    for (args, code) in [(&["flush"][..], 130), (&["snapshot", "--wait", "-m", "stopped"], 130)] {
        let mut waiting = start_in(&lazy, args);
        let mut told = BufReader::new(waiting.stderr.take().unwrap());
        told.read_line(&mut String::new()).unwrap();
        kill(i32::try_from(waiting.id()).unwrap(), "-INT");
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        assert_eq!(waiting.wait().unwrap().code(), Some(code), "{rest}");
        assert!(rest.contains("nothing is lost"), "{rest}");
    }
    lazy.run(&["--retry-for", "2s", "flush"]).code(2);
    // The snapshot that was waited for exists all the same.
    lazy.server.tell_truth();
    lazy.run(&["flush"]).ok();
    lazy.run(&["history"]).ok().says("stopped");
}

#[test]
fn who_waits_for_the_store_does_not_wait_while_requests_are_switched_off() {
    let lazy = LazyMount::in_world(world_with_credentials(), &[("there", noise(2, 800_000))]);
    lazy.run(&["offline", "on"]).ok();
    fs::write(lazy.path("new"), "new").unwrap();
    lazy.run(&["flush"]).code(2).remarks("requests are switched off");
    lazy.run(&["offline", "off"]).ok();
    lazy.run(&["flush"]).ok();
}

/// The limit of a log, and what is written into it: more than it has room for.
const LOG_LIMIT: &str = "4M";
const WRITTEN: usize = 12 << 20;

/// A mount whose log is full of what a silent service does not take, and a program that waits for room.
struct FullLog {
    lazy: LazyMount,
    content: Vec<u8>,
    copy: Child,
}

impl FullLog {
    fn new() -> Self {
        let lazy = LazyMount::in_world(world_with_credentials(), &[("small", noise(1, 1000))]);
        lazy.umount();
        lazy.mount_with(&["--log-limit", LOG_LIMIT]);
        for method in ["GET", "HEAD", "LIST", "PUT", "POST"] {
            lazy.server.add_lie(every(method), S3Lie::Hang);
        }
        let content = noise(9, WRITTEN);
        fs::write(lazy.world.path("content"), &content).unwrap();
        let mut copy = Command::new("dd");
        copy.arg(format!("if={}", lazy.world.path("content").display()));
        copy.arg(format!("of={}", lazy.path("large").display())).args(["bs=64K", "conv=fsync"]);
        let copy = copy.stderr(Stdio::null()).spawn().unwrap();
        let waiting = || {
            let stats = fs::read_to_string(lazy.path(".vellum/stats")).unwrap();
            let line =
                stats.lines().find_map(|line| line.strip_prefix("vellum_log_waiting_writers ")).unwrap();
            line.parse::<f64>().unwrap()
        };
        wait_until("a write waits for room", || waiting() >= 1.0);
        Self { lazy, content, copy }
    }

    /// What was written is whole, here and then in the store.
    fn check_content(mut self) {
        assert!(self.copy.wait().unwrap().success());
        self.lazy.server.tell_truth();
        self.lazy.mount();
        assert!(fs::read(self.lazy.path("large")).unwrap() == self.content);
        self.lazy.run(&["snapshot", "--wait"]).ok();
        self.lazy.run_in(&self.lazy.world.tree(), &["verify", "--all"]).ok();
    }
}

#[test]
fn a_mount_with_a_full_log_is_ended_by_force_without_its_service() {
    let full = FullLog::new();
    let mountpoint = full.lazy.mountpoint().display().to_string();
    let begun = Instant::now();
    let ended = full.lazy.run_in(&full.lazy.world.tree(), &["umount", "--force", &mountpoint]);
    ended.code(1).says("Unmounted").remarks("is not whole in the store");
    // Without force, a service that does not answer is waited for.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    full.check_content();
}

#[test]
#[ignore = "soak: it waits for a minute, as mounts do"]
fn a_signal_ends_a_mount_with_a_full_log_although_its_service_does_not_answer() {
    let full = FullLog::new();
    let description = fs::read(full.lazy.path(".vellum/mount.json")).unwrap();
    let description: serde_json::Value = serde_json::from_slice(&description).unwrap();
    let pid = description["pid"].as_i64().unwrap();
    kill(i32::try_from(pid).unwrap(), "-TERM");
    wait_until("its process has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    full.check_content();
}
