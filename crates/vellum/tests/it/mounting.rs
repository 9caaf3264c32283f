//! A mount of a volume, taken away when the test ends, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use serde_json::Value;

use crate::world::{Ran, World};

/// A mount.
pub struct Mount<'w> {
    pub world: &'w World,
    pub path: PathBuf,
}

impl<'w> Mount<'w> {
    /// A new worktree `name` of the volume, mounted on a new directory of this name, for all users.
    pub fn new(world: &'w World, name: &str) -> Self {
        let mount = Self::place(world, name);
        mount.again(&["--allow-other"]).ok();
        mount
    }

    /// A new directory beside the worktree.
    pub fn place(world: &'w World, name: &str) -> Self {
        let path = world.path(name);
        fs::create_dir(&path).unwrap();
        Self { world, path }
    }

    /// Mounts with these arguments.
    pub fn again(&self, args: &[&str]) -> Ran {
        let path = self.path.to_str().unwrap();
        self.world.run(&[&["mount"], args, &[path]].concat())
    }

    /// Unmounts.
    pub fn umount(&self) -> Ran {
        self.world.run(&["umount", self.path.to_str().unwrap()])
    }

    /// A path in the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether nobody serves it any more: asked in a way to which the kernel does not know the answer by itself.
    pub fn is_dead(&self) -> bool {
        rustix::fs::statvfs(&self.path).is_err()
    }

    /// Whether something is mounted there.
    pub fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == self.path.to_str())
    }

    /// What the mount says of itself.
    pub fn description(&self) -> Value {
        serde_json::from_slice(&fs::read(self.at(".vellum/mount.json")).unwrap()).unwrap()
    }

    /// The process that serves it.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.description()["pid"].as_u64().unwrap()).unwrap()
    }

    /// How many requests of a kind it was asked, as FUSE calls the kind.
    pub fn request_count(&self, operation: &str) -> u64 {
        let text = fs::read_to_string(self.at(".vellum/stats")).unwrap();
        let begin = format!("vellum_fuse_request_seconds_count{{operation=\"{operation}\"}} ");
        let count = text.lines().find_map(|line| line.strip_prefix(&*begin));
        count.map_or(0, |count| count.parse().unwrap())
    }

    /// Runs a shell in the mount; it has to succeed. Gives what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        sh(&self.path, script)
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // The process ends by itself when the mount is gone.
        detach_mount(&self.path);
    }
}

/// Takes a mount away. `umount` would ask the mount for its attributes, and wait if its process is held.
pub fn detach_mount(path: &Path) {
    // It may be gone already.
    let _ = rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Takes away all that is mounted in a directory, whoever mounted it, and lets go on what a test holds.
pub fn detach_mounts_below(dir: &Path) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    // What was mounted last may lie in what was mounted before it.
    for place in places.filter(|place| Path::new(place).starts_with(dir)).rev() {
        detach_mount(Path::new(place));
    }
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let read = |name| fs::read(process.path().join(name)).unwrap_or_default();
        let is_held = String::from_utf8_lossy(&read("stat")).contains(") T ");
        // The directory has a name of its own on this machine.
        let is_ours = || String::from_utf8_lossy(&read("cmdline")).contains(dir.to_str().unwrap_or("?"));
        if is_held && is_ours() {
            let _ = Command::new("kill").arg("-CONT").arg(process.file_name()).output();
        }
    }
}

/// Sends a signal. A process that is killed has closed its files when this returns.
#[track_caller]
pub fn kill(pid: i32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    if signal == "-KILL" {
        // Its mount may be dead while the last of its threads still holds its sockets and locks: whoever starts the next
        // process then would find the address in use.
        wait_until("it has ended", || has_only_tasks(pid, &['Z', 'X']));
    }
}

/// Holds a process: when this returns, none of its threads does anything any more.
#[track_caller]
pub fn hold(pid: i32) {
    kill(pid, "-STOP");
    // One that ended meanwhile does nothing, either.
    wait_until("it is held", || has_only_tasks(pid, &['T', 'Z', 'X']));
}

/// Whether all threads of a process are in one of these states (`proc(5)`), or there is no such process.
fn has_only_tasks(pid: i32, states: &[char]) -> bool {
    let is_so = |task: std::io::Result<fs::DirEntry>| {
        let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat")));
        // One that has ended since it was listed has no state.
        stat.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(states)))
    };
    fs::read_dir(format!("/proc/{pid}/task")).map_or(true, |mut tasks| tasks.all(is_so))
}

/// Waits until something is so.
#[track_caller]
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not within two minutes: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a shell in a directory; it has to succeed. Gives what it printed.
#[track_caller]
pub fn sh(dir: &Path, script: &str) -> String {
    let Output { status, stdout, stderr } =
        Command::new("bash").args(["-euo", "pipefail", "-c", script]).current_dir(dir).output().unwrap();
    let out = String::from_utf8_lossy(&stdout);
    let err = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{script}\n--- stdout\n{out}--- stderr\n{err}");
    out.into_owned()
}
