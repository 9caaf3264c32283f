//! Promises of mounted worktrees.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use vellum_host::mount_table::read_mounts;

use super::checked_out::{expect_content, list_notes};
use super::ground::{TrialGround, TrialWorktree};
use super::{Promise, TrialResult, TrialStop, expect};

/// Snapshots that are made while something changes.
const SNAPSHOTS: usize = 4;

pub const PROMISES: &[Promise] = &[
    Promise {
        name: "what fsync acknowledged survives kill -9",
        how: "fsync, the serving process killed, mounted again",
        check: try_synced_file,
    },
    Promise {
        name: "what snapshot acknowledged survives kill -9",
        how: "snapshot, the serving process killed at once, mounted again",
        check: try_killed_after_snapshot,
    },
    Promise {
        name: "a snapshot is one moment of the whole worktree",
        how: "names made in two directories in turn, 4 snapshots meanwhile",
        check: try_one_moment,
    },
    Promise {
        name: "restore replaces all at once; open files keep their content",
        how: "a file held open, restore, both read",
        check: try_open_file,
    },
    Promise {
        name: "a worktree has one writer",
        how: "a second mount of it is refused",
        check: try_second_mount,
    },
    Promise {
        name: "after umount everything is in the store",
        how: "umount, verify --all, mounted again",
        check: try_unmounted,
    },
];

/// A worktree that is mounted; detached when dropped.
pub struct TrialMount<'w> {
    worktree: &'w TrialWorktree<'w>,
    /// Where it is mounted.
    pub path: PathBuf,
}

impl<'w> TrialMount<'w> {
    /// Mounts a new worktree of a volume on a new directory of this name.
    pub fn begin(worktree: &'w TrialWorktree<'_>, name: &str) -> TrialResult<Self> {
        let opened = File::options().read(true).write(true).open("/dev/fuse");
        opened.map_err(|error| TrialStop::Inapplicable(format!("/dev/fuse cannot be opened: {error}")))?;
        let path = worktree.around.join(name);
        fs::create_dir(&path)?;
        let mount = Self { worktree, path };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&self) -> TrialResult {
        self.worktree.run_ok(&["mount", &self.path.display().to_string()]).map(drop)
    }

    /// Runs a command in it that has to succeed.
    pub fn run_ok(&self, args: &[&str]) -> TrialResult<String> {
        self.worktree.program.run_ok(&self.path, args)
    }

    fn umount(&self) -> TrialResult {
        self.worktree.run_ok(&["umount", &self.path.display().to_string()]).map(drop)
    }

    /// Kills the process that serves it, and mounts it again.
    fn kill_and_mount_again(&self) -> TrialResult {
        let text = fs::read(self.path.join(".vellum/mount.json"))?;
        let description: serde_json::Value = serde_json::from_slice(&text).map_err(std::io::Error::from)?;
        let pid = description["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid =
            pid.ok_or_else(|| TrialStop::Broken("the mount does not say which process serves it".into()))?;
        // A signal that cannot be handled: nothing is flushed, as in a crash of the process.
        kill_process(pid, Signal::KILL)?;
        self.mount()
    }
}

impl Drop for TrialMount<'_> {
    fn drop(&mut self) {
        let is_mounted =
            read_mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.mountpoint == self.path));
        // A mount that is left would keep the directory of the trial from being removed.
        if is_mounted && self.umount().is_err() {
            let _ = vellum_fuse::detach_mount(&self.path);
        }
    }
}

fn write_synced(path: &Path, content: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

fn try_synced_file(ground: &TrialGround) -> TrialResult {
    ground.require_several_writers()?;
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = TrialMount::begin(&worktree, "mnt")?;
    let path = mount.path.join("file");
    write_synced(&path, "synced")?;
    mount.kill_and_mount_again()?;
    expect_content(&path, "synced")
}

fn try_killed_after_snapshot(ground: &TrialGround) -> TrialResult {
    ground.require_several_writers()?;
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = TrialMount::begin(&worktree, "mnt")?;
    let path = mount.path.join("file");
    fs::write(&path, "in the snapshot")?;
    mount.run_ok(&["snapshot", "--quiet", "--tag", "first"])?;
    mount.kill_and_mount_again()?;
    expect_content(&path, "in the snapshot")?;
    fs::write(&path, "later")?;
    mount.run_ok(&["restore", "first"])?;
    expect_content(&path, "in the snapshot")
}

/// Makes a name in one directory, then in the other, over and over, until it is told to end.
fn make_names(root: &Path, is_ended: &AtomicBool) -> std::io::Result<()> {
    let mut number = 0_u64;
    while !is_ended.load(Ordering::Relaxed) {
        // Always in this order, so that each moment has as many names in the first directory as in the second, or one more.
        fs::create_dir(root.join("a").join(number.to_string()))?;
        fs::create_dir(root.join("b").join(number.to_string()))?;
        number += 1;
    }
    Ok(())
}

fn try_one_moment(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = TrialMount::begin(&worktree, "mnt")?;
    for name in ["a", "b"] {
        fs::create_dir(mount.path.join(name))?;
    }
    let is_ended = AtomicBool::new(false);
    let snapshots: Vec<_> = (0..SNAPSHOTS).map(|number| format!("moment-{number}")).collect();
    let made = std::thread::scope(|scope| {
        let making = scope.spawn(|| make_names(&mount.path, &is_ended));
        let taken = snapshots
            .iter()
            .try_for_each(|tag| mount.run_ok(&["snapshot", "--quiet", "--tag", tag]).map(drop));
        is_ended.store(true, Ordering::Relaxed);
        // A thread that panicked has made fewer names.
        making.join().unwrap_or(Ok(())).map_err(TrialStop::from).and(taken)
    });
    made?;
    // The snapshots are published in the background, and `export` reads the store.
    mount.run_ok(&["flush"])?;
    for tag in &snapshots {
        let exported = worktree.export(tag)?;
        let count = |name: &str| Ok::<_, std::io::Error>(fs::read_dir(exported.join(name))?.count());
        let first = count("a")?;
        let second = count("b")?;
        expect(first == second || first == second + 1, || {
            format!("a snapshot has {first} names of the one and {second} of the other")
        })?;
    }
    Ok(())
}

fn try_open_file(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = TrialMount::begin(&worktree, "mnt")?;
    let path = mount.path.join("file");
    fs::write(&path, "first")?;
    mount.run_ok(&["snapshot", "--quiet", "--tag", "first"])?;
    write_synced(&path, "second")?;
    // Opened before the restore: POSIX lets a program go on with the file that it has open, whatever gets its name.
    let mut open = File::open(&path)?;
    mount.run_ok(&["restore", "first"])?;
    expect_content(&path, "first")?;
    let mut text = String::new();
    open.read_to_string(&mut text)?;
    expect(text == "second", || format!("the open file has {text:?}"))
}

fn try_second_mount(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = TrialMount::begin(&worktree, "mnt")?;
    fs::create_dir(worktree.around.join("second"))?;
    let second = worktree.around.join("second").display().to_string();
    let refused = worktree.program.run(&worktree.tree, &["mount", "--worktree", "mnt", &second])?;
    expect(refused.code == Some(2), || "it was mounted a second time".into())?;
    Ok(fs::write(mount.path.join("file"), "the first mount goes on")?)
}

fn try_unmounted(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let mount = TrialMount::begin(&worktree, "mnt")?;
    let path = mount.path.join("file");
    fs::write(&path, "content")?;
    mount.run_ok(&["snapshot", "--quiet", "-m", "first"])?;
    fs::write(mount.path.join("later"), "no snapshot has it")?;
    mount.umount()?;
    worktree.verify()?;
    mount.mount()?;
    expect_content(&path, "content")?;
    expect_content(&mount.path.join("later"), "no snapshot has it")?;
    let notes = worktree.program.run_json(&mount.path, &["history", "-n", "0"])?;
    expect(notes["snapshots"][0]["note"] == "first", || "its snapshot is not in the history".into())?;
    // That of the directory beside it has none.
    let others = list_notes(&worktree)?.len();
    expect(others == 0, || "its snapshot is in the history of another worktree".into())
}
