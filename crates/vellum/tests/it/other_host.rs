//! "Another host": this one, through a real `ssh` and a real `sshd` that talk through a pipe, so that no port is taken
//! and nothing is left when a test ends.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command};

use vellum_testkit::SshServer;

use crate::world::{Ran, World};

/// Passes on both ways: each piece after a delay, and, once, nothing more after so many bytes, which all arrive; nor when
/// a file says so. How many bytes were passed on is written down.
const RELAY: &str = r#"
import os, queue, subprocess, sys, threading, time
delay, cut, marker, command = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
passed_on = os.open(marker + ".passed", os.O_WRONLY | os.O_APPEND | os.O_CREAT) if cut else None
if cut and os.path.exists(marker):
    cut = 0
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def pump(source, target, cut):
    pieces = queue.Queue()
    def write():
        while True:
            due, piece = pieces.get()
            if not piece:
                break
            time.sleep(max(0, due - time.monotonic()))
            try:
                while piece:
                    piece = piece[os.write(target, piece):]
            except OSError:
                break
        os.close(target)
    writer = threading.Thread(target=write)
    writer.start()
    passed = 0
    while True:
        try:
            piece = os.read(source, 65536)
        except OSError:
            piece = b""
        if cut and passed + len(piece) > cut:
            open(marker, "w").close()
            pieces.put((0, b""))
            writer.join()
            child.kill()
            os._exit(1)
        passed += len(piece)
        if passed_on:
            os.write(passed_on, f"{len(piece)}\n".encode())
        pieces.put((time.monotonic() + delay, piece))
        if not piece:
            break
    writer.join()
def cut_when_told():
    while not os.path.exists(marker + ".cut"):
        time.sleep(0.01)
    os.remove(marker + ".cut")
    child.kill()
    os._exit(1)
threading.Thread(target=cut_when_told, daemon=True).start()
threads = [threading.Thread(target=pump, args=(0, child.stdin.fileno(), cut)),
           threading.Thread(target=pump, args=(child.stdout.fileno(), 1, cut))]
threads[0].daemon = True
for thread in threads:
    thread.start()
threads[1].join()
child.stdin = None
os._exit(child.wait())
"#;

/// The way to this host.
pub struct Host {
    pub world: World,
    pub rsh: String,
}

impl Host {
    /// A way that nothing is in.
    pub fn new() -> Self {
        Self::through("")
    }

    /// `relay`: words before the command that starts sshd.
    pub fn through(relay: &str) -> Self {
        let world = World::empty();
        let dir = world.path("ssh");
        let server = SshServer::new(&dir);
        fs::write(dir.join("relay.py"), RELAY).unwrap();
        let shown = dir.display();
        let relay = relay.replace("RELAY", &format!("/usr/bin/env python3 {shown}/relay.py"));
        let rsh = server.ssh_words(&relay.replace("MARKER", &format!("{shown}/marker")));
        Self { world, rsh }
    }

    /// Runs `vellum sync` with these words.
    pub fn sync(&self, args: &[&str]) -> Ran {
        let program = env!("CARGO_BIN_EXE_vellum");
        let mut all = vec!["sync", "-e", &self.rsh, "--remote-program", program];
        all.extend(args);
        let ran = self.world.run(&all);
        if ran.code > 1 {
            eprintln!("sshd: {}", fs::read_to_string(self.world.path("ssh/log")).unwrap_or_default());
        }
        ran
    }

    /// Starts `vellum sync` with these words.
    pub fn start(&self, args: &[&str]) -> Child {
        let program = env!("CARGO_BIN_EXE_vellum");
        let command = &["sync", "-e", &self.rsh, "--remote-program", program];
        Command::new(program).args(command).args(args).current_dir(self.world.tree()).spawn().unwrap()
    }

    /// A path of the worktree, on the other host.
    pub fn at(&self, path: &str) -> String {
        format!("here:{}", self.world.tree().join(path).display())
    }

    /// Cuts the connection through the relay.
    pub fn cut(&self) {
        fs::write(self.world.path("ssh/marker.cut"), "").unwrap();
    }

    /// Bytes that went through the relay.
    pub fn passed(&self) -> u64 {
        let passed = fs::read_to_string(self.world.path("ssh/marker.passed")).unwrap();
        passed.lines().map(|line| line.parse::<u64>().unwrap()).sum()
    }

    /// A two-way run of `a` here and `b` there.
    pub fn both(&self, more: &[&str]) -> Ran {
        let far = self.at("b");
        let program = env!("CARGO_BIN_EXE_vellum");
        let mut all = vec!["sync", "-e", &self.rsh, "--remote-program", program, "--two-way"];
        all.extend(more);
        all.extend(["a", &far]);
        self.world.run_at_home(&all)
    }

    /// Two trees are the same.
    pub fn assert_equal(&self, one: &str, other: &str) {
        let tree = |path: &str| describe_tree(&self.world.tree().join(path));
        assert_eq!(tree(one), tree(other));
    }
}

/// Everything that a tree is, in words.
pub fn describe_tree(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(at) = pending.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let link = fs::read_link(&path).ok();
            let shown = path.strip_prefix(root).unwrap().to_path_buf();
            let sum: u64 =
                content.iter().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            let time = (meta.mtime(), meta.mtime_nsec());
            lines.push(format!("{shown:?} {:o} {time:?} {link:?} {} {sum}", meta.mode(), content.len()));
            if meta.is_dir() {
                pending.push(path);
            }
        }
    }
    lines.sort();
    lines
}
