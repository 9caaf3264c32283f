//! A temporary directory with a tree in it, and the binary.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::mounting::detach_mounts_below;

/// What every command is run with: nothing of the machine shows in its output.
const ENVIRONMENT: [(&str, &str); 4] =
    [("TZ", "UTC"), ("USER", "tester"), ("LC_ALL", "C.UTF-8"), ("PATH", "/usr/bin:/bin")];

/// A place to work in.
pub struct World {
    dir: TempDir,
}

/// A command that has run.
pub struct Ran {
    pub args: String,
    pub code: i32,
    pub raw: Vec<u8>,
    pub out: String,
    pub err: String,
}

impl World {
    /// An empty directory `tree` in an empty directory.
    pub fn empty() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(world.tree()).unwrap();
        world
    }

    /// The same on a disk of its own.
    pub fn on(disk: &Path) -> Self {
        let world = Self { dir: tempfile::tempdir_in(disk).unwrap() };
        fs::create_dir(world.tree()).unwrap();
        world
    }

    /// A worktree of a plain volume (encryption costs nothing but makes ids differ), without snapshots.
    pub fn new() -> Self {
        let world = Self::empty();
        world.run(&["init", "--plain"]).ok();
        world
    }

    /// A worktree with some files in it and one snapshot of them, tagged `first`.
    pub fn with_snapshot() -> Self {
        let world = Self::new();
        world.write("a.txt", "one\ntwo\nthree\n");
        world.write("dir/b.txt", "b\n");
        world.write("dir/deep/c.bin", [0, 1, 2, 255]);
        world.snapshot("first");
        world
    }

    /// Where the worktree is.
    pub fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    /// A path beside the worktree.
    pub fn path(&self, name: &str) -> PathBuf {
        // Symlinks of the system's temporary directory would show in messages.
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Writes a file of the worktree, with the directories above it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.tree().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Reads a file of the worktree.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.tree().join(name)).unwrap()
    }

    /// Whether the worktree has this path.
    pub fn has(&self, name: &str) -> bool {
        self.tree().join(name).symlink_metadata().is_ok()
    }

    /// Removes a file of the worktree.
    pub fn remove(&self, name: &str) {
        fs::remove_file(self.tree().join(name)).unwrap();
    }

    /// Sets a mode in the worktree.
    pub fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.tree().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Takes a snapshot with this note and tag; gives its id.
    pub fn snapshot(&self, tag: &str) -> String {
        self.run(&["snapshot", "-q", "-m", tag, "--tag", tag]).ok().out.trim().into()
    }

    /// Runs the binary in the worktree.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_in("", args)
    }

    /// Runs the binary in a directory of the worktree.
    pub fn run_in(&self, dir: &str, args: &[&str]) -> Ran {
        run(&self.tree().join(dir), args, Stdio::null())
    }

    /// Gives everything to a user.
    pub fn give_to(&self, user: u32) {
        fs::set_permissions(self.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut pending = vec![self.tree()];
        while let Some(path) = pending.pop() {
            std::os::unix::fs::lchown(&path, Some(user), Some(user)).unwrap();
            if path.is_dir() {
                pending.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }

    /// Runs the binary in the worktree as another user.
    pub fn run_as(&self, user: u32, args: &[&str]) -> Ran {
        let mut command = command(&self.tree(), args);
        Ran::of(args, command.uid(user).gid(user).output().unwrap())
    }

    /// Runs the binary in the worktree; what it keeps for the user is kept beside it.
    pub fn run_at_home(&self, args: &[&str]) -> Ran {
        Ran::of(args, self.command_at_home(args).output().unwrap())
    }

    /// The same, to be started.
    pub fn command_at_home(&self, args: &[&str]) -> Command {
        let mut command = command(&self.tree(), args);
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CONFIG_HOME", self.path("config"));
        command
    }

    /// The same in a directory beside the worktree, as another machine has it.
    pub fn run_beside(&self, dir: &str, args: &[&str]) -> Ran {
        Ran::of(args, self.command_at_home(args).current_dir(self.path(dir)).output().unwrap())
    }

    /// Runs the binary in the worktree with this on standard input.
    pub fn run_with_input(&self, args: &[&str], input: &str) -> Ran {
        let file = self.path("input");
        fs::write(&file, input).unwrap();
        run(&self.tree(), args, fs::File::open(file).unwrap())
    }

    /// Runs a command that has to succeed, or to end with findings; gives its JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[&["--json"], args].concat());
        assert!(matches!(ran.code, 0 | 1), "{} ended with {}: {}", ran.args, ran.code, ran.err);
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(value["version"], 1);
        value
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that fails takes nothing away. What it leaves would hold up tests that look at all mounts.
        detach_mounts_below(self.dir.path());
    }
}

/// Copies a directory with all that is in it.
pub fn copy_dir(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Bytes that no compressor makes smaller.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // xorshift64, as Marsaglia gave it.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Runs the binary in a directory.
pub fn run(dir: &Path, args: &[&str], input: impl Into<Stdio>) -> Ran {
    Ran::of(args, command(dir, args).stdin(input).output().unwrap())
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
    command.args(args).current_dir(dir).env_clear().envs(ENVIRONMENT).envs(profile()).stdin(Stdio::null());
    command
}

/// Where a binary that was built to measure coverage writes which lines it executed. Without the variable, it writes that into
/// its working directory, which tests look into.
pub fn profile() -> Option<(&'static str, OsString)> {
    const NAME: &str = "LLVM_PROFILE_FILE";
    std::env::var_os(NAME).map(|path| (NAME, path))
}

impl Ran {
    pub fn of(args: &[&str], output: Output) -> Self {
        Self {
            args: args.join(" "),
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            raw: output.stdout,
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// It has to have ended with this code.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        let Self { args, code: found, out, err, .. } = &self;
        assert_eq!(*found, code, "vellum {args}\n--- stdout\n{out}--- stderr\n{err}");
        self
    }

    /// It has to have ended with 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.code(0)
    }

    /// Its result has to have this in it.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.out.contains(text), "vellum {} does not say {text:?}:\n{}", self.args, self.out);
        self
    }

    /// Its remarks and errors have to have this in them.
    #[track_caller]
    pub fn remarks(self, text: &str) -> Self {
        assert!(self.err.contains(text), "vellum {} does not remark {text:?}:\n{}", self.args, self.err);
        self
    }

    /// The lines of its result.
    pub fn lines(&self) -> Vec<&str> {
        self.out.lines().collect()
    }
}
