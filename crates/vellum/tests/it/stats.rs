//! `vellum stats`, `.vellum/stats`, and `vellum mount --metrics`

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::mounting::{Mount, wait_until};
use crate::world::{World, noise};

#[test]
fn figures_of_a_mount_are_told_a_line_each_interval() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let path = mount.path.to_str().unwrap();
    let ran = world.run(&["stats", path, "--interval", "0.05", "--count", "3"]).ok();
    assert_eq!(ran.lines().len(), 2 + 3, "{}", ran.out);
    ran.says("cpu%").says("fuse");
    let report = world.json(&["stats", path, "--interval", "0.05", "--count", "1"]);
    assert!(report["memory"].as_u64().unwrap() > 1 << 20);
    assert!(report["seconds"].as_f64().unwrap() >= 0.05);
    // Looking at the figures asks the mount for them.
    assert!(report["fuse"]["rate"].as_f64().unwrap() > 0.0);
    let stats = ["-C", path, "stats", "--interval", "0.05", "--count", "1"];
    assert_eq!(world.run(&stats).ok().lines().len(), 2 + 1);
    world.run(&["stats"]).code(3).remarks("is not a mount");
    world.run(&["stats", "."]).code(3).remarks("is not a mount").remarks("vellum mounts");
    world.run(&["stats", path, "--interval", "x"]).code(3);
    world.run(&["stats", path, "--tui"]).code(3).remarks("not a terminal");
}

/// Runs `vellum stats --tui` on a terminal of its own, one that does not say how large it is, and does something once it
/// has drawn; tells how it ended.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, subprocess, sys, termios, time
vellum, mount, way = sys.argv[1:]
ours, theirs = pty.openpty()
before = termios.tcgetattr(theirs)
run = subprocess.Popen(
    [vellum, "stats", mount, "--tui", "--interval", "0.1"],
    stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
)
seen = b""
def read(until):
    global seen
    end = time.monotonic() + 120
    while until not in seen:
        assert time.monotonic() < end, seen
        if select.select([ours], [], [], 1)[0]:
            seen += os.read(ours, 65536)
try:
    read(b"transactions")
    # The terminal hides what is typed, and gives it at once.
    assert termios.tcgetattr(theirs)[3] & (termios.ICANON | termios.ECHO) == 0
    if way == "gone":
        subprocess.run(["umount", "-l", mount], check=True)
    else:
        os.write(ours, {"q": b"q", "ctrl-c": b"\x03", "other keys, then q": b"\x1b[Ax q"}[way])
    # The other screen is left.
    read(b"\x1b[?25h\x1b[?1049l")
    code = run.wait(timeout=120)
finally:
    run.kill()
assert seen.startswith(b"\x1b[?1049h"), seen
assert termios.tcgetattr(theirs) == before
print(code)
"#;

#[test]
fn a_whole_terminal_is_taken_and_given_back() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    for way in ["q", "ctrl-c", "other keys, then q", "gone"] {
        let ran = Command::new("python3")
            .args(["-c", TERMINAL, env!("CARGO_BIN_EXE_vellum"), mount.path.to_str().unwrap(), way])
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&ran.stdout);
        let error = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(out, "0\n", "{way}: {error}");
    }
}

/// Runs `vellum stats --tui` in a terminal with 60 columns, and prints each screen that has a text which the last argument
/// names; the files before that are locked meanwhile, as a transfer locks them.
const NARROW: &str = r#"
import fcntl, os, pty, select, struct, subprocess, sys, termios, time
vellum, mount, lock, wanted = sys.argv[1:]
held = open(lock, "w")
fcntl.flock(held, fcntl.LOCK_SH)
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
run = subprocess.Popen(
    [vellum, "stats", mount, "--tui", "--interval", "0.1"],
    stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
)
seen = b""
try:
    end = time.monotonic() + 120
    # The last screen may not be there as a whole.
    while not any(wanted.encode() in screen for screen in seen.split(b"\x1b[H")[:-1]):
        assert time.monotonic() < end, seen
        if select.select([ours], [], [], 1)[0]:
            seen += os.read(ours, 65536)
    os.write(ours, b"q")
    while run.poll() is None:
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 65536)
finally:
    run.kill()
screen = [screen for screen in seen.split(b"\x1b[H")[:-1] if wanted.encode() in screen][0]
sys.stdout.write(screen.decode().replace("\x1b[J", "").replace("\x1b[K", "").replace("\r", ""))
"#;

#[test]
fn on_a_narrow_terminal_remotes_and_all_figures_are_shown_whole() {
    let world = World::with_snapshot();
    world.write("a.txt", "more");
    let hub = world.path("hub").display().to_string();
    world.run(&["remote", "add", "hub", &hub]).ok();
    world.run(&["push", "hub"]).ok();
    world.run(&["remote", "add", "other", &world.path("other").display().to_string()]).ok();
    world.run(&["snapshot"]).ok();
    let mount = Mount::place(&world, "work");
    world.run(&["fork", "work", "--mount", mount.path.to_str().unwrap()]).ok();
    let lock = world.tree().join(".vellum/remotes/hub/push.lock");
    assert!(lock.exists(), "the push has left its lock");
    let ran = Command::new("python3")
        .args(["-c", NARROW, env!("CARGO_BIN_EXE_vellum"), mount.path.to_str().unwrap()])
        .args([lock.to_str().unwrap(), "remote   other   never seen"])
        .output()
        .unwrap();
    let screen = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let plain = |line: &str| line.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
    let lines: Vec<_> = screen.lines().map(plain).collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:#?}");
    let at = lines.iter().position(|line| line.starts_with("remote   hub   pushing for ")).unwrap();
    // The worktree of this name is in no remote: all of its history would be pushed.
    assert!(lines[at..at + 2].join(" ").contains("2 to push"), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("metadata ")), "{lines:#?}");
}

#[test]
fn the_text_is_what_prometheus_reads() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::write(mount.at("new"), noise(300_000)).unwrap();
    mount.sh("sync; cat new > /dev/null");
    world.run(&["-C", mount.path.to_str().unwrap(), "flush"]).ok();
    let text = fs::read_to_string(mount.at(".vellum/stats")).unwrap();
    let mut kinds = std::collections::HashMap::new();
    let mut samples = std::collections::HashMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(kinds.insert(name, kind).is_none(), "{name} is told in two places");
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let bare = name.split('{').next().unwrap();
        let ends = ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end));
        assert!(kinds.contains_key(bare) || ends.is_some_and(|bare| kinds[bare] == "histogram"), "{line}");
        assert!(samples.insert(name, value.parse::<f64>().unwrap()).is_none(), "{line} is told twice");
    }
    assert_eq!(samples["vellum_fuse_written_bytes_total"], 300_000.0);
    for name in [
        "vellum_fuse_request_seconds_count{operation=\"write\"}",
        "vellum_live_transaction_seconds_count",
        "vellum_live_sync_seconds_count",
        "vellum_publish_seconds_count",
        "vellum_object_request_seconds_count{request=\"put\"}",
        "vellum_object_sent_bytes_total",
        "vellum_log_limit_bytes",
        "vellum_cache_capacity_bytes{cache=\"chunk\"}",
        "vellum_cache_hits_total{cache=\"inode\"}",
        "process_resident_memory_bytes",
    ] {
        assert!(samples.get(name).is_some_and(|value| *value > 0.0), "{name}:\n{text}");
    }
}

fn get_page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_mount_answers_at_an_address_of_this_machine() {
    let world = World::with_snapshot();
    let mount = Mount::place(&world, "work");
    let report = mount.again(&["--json", "--metrics", "0"]).ok();
    let report: serde_json::Value = serde_json::from_str(&report.out).unwrap();
    let address = report["metrics"].as_str().unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let answer = get_page(address, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("vellum_live_memory_bytes ") && answer.contains("process_cpu_seconds_total "));
    let answer = get_page(address, "/health");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\nok\n"), "{answer}");
    // The address is taken: a second mount does not begin.
    let second = Mount::place(&world, "second");
    second.again(&["--metrics", address]).code(2).remarks(address);
    mount.again(&["--metrics", "somewhere"]).code(3);
    // Nothing can be published: the store has lost the folder that its packs go into.
    let packs = world.tree().join(".vellum/store/packs");
    fs::remove_dir_all(&packs).unwrap();
    fs::write(&packs, "in the way").unwrap();
    fs::write(mount.at("new"), "content").unwrap();
    wait_until("publishing fails", || get_page(address, "/health").starts_with("HTTP/1.1 503 "));
    let answer = get_page(address, "/health");
    assert!(answer.contains("\r\n\r\npublishing fails: "), "{answer}");
}
