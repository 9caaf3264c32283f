//! `vellum mount --deny-hydrate`: programs for which no content is fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vellum_testkit::SeaweedServer;

use crate::hydrate::noise;
use crate::remote::{init, world_with_credentials};
use crate::world::{Ran, World};

struct DenyingMount {
    world: World,
    _server: SeaweedServer,
}

impl DenyingMount {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let world = world_with_credentials();
        let server = SeaweedServer::start(&world.path("seaweed"));
        init(&world, &server.store_url("denied")).ok();
        files.iter().for_each(|(name, content)| world.write(name, content));
        let mount = Self { world, _server: server };
        mount.run(&["snapshot", "-m", "one"]).ok();
        fs::create_dir(mount.mountpoint()).unwrap();
        mount.run(&["mount", "--deny-hydrate", "scanner,indexer-of-the-desktop", &mount.shown()]).ok();
        mount.run(&["evict", "--all"]).ok();
        mount
    }

    fn mountpoint(&self) -> PathBuf {
        self.world.path("mnt")
    }

    fn shown(&self) -> String {
        self.mountpoint().display().to_string()
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.world.command_at_home(args);
        Ran::of(args, command.env("XDG_CACHE_HOME", self.world.path("cache")).output().unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.world.tree().join(".vellum/live/mnt/daemon.log")).unwrap_or_default()
    }
}

impl Drop for DenyingMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.mountpoint()).output();
    }
}

/// A program that prints files, with this name.
fn make_program(dir: &Path, name: &str) -> PathBuf {
    let program = dir.join(name);
    fs::copy("/bin/cat", &program).unwrap();
    program
}

#[track_caller]
fn expect_denied(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("Permission denied"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_program_that_is_denied_reads_only_what_is_here() {
    let names = ["one", "two", "three"];
    // The last one is longer than what may be fetched ahead while the others are read.
    let sizes = [1_500_000, 1_500_000, 40_000_000];
    let files: Vec<_> =
        names.iter().zip(1..).zip(sizes).map(|((name, seed), size)| (*name, noise(seed, size))).collect();
    let mount = DenyingMount::new(&files);
    // The kernel cuts long names.
    for name in ["scanner", "indexer-of-the-desktop"] {
        let program = make_program(&mount.world.path(""), name);
        let read = |file: &str| Command::new(&program).arg(mount.mountpoint().join(file)).output().unwrap();
        for file in names {
            expect_denied(&read(file));
        }
        let listed = Command::new("ls").arg("-l").arg(mount.mountpoint()).output().unwrap();
        assert!(listed.status.success());
    }
    for name in ["scanner", "indexer-of-the-"] {
        let line = format!("{name} reads only content that is on this machine, because of --deny-hydrate");
        assert_eq!(mount.log().matches(&line).count(), 1, "{}", mount.log());
    }
    // Others are not denied, and what they have read can be read by all.
    let other = make_program(&mount.world.path(""), "scanner2");
    let scanner = mount.world.path("scanner");
    let read = |program: &Path, file: &str| {
        Command::new(program).arg(mount.mountpoint().join(file)).output().unwrap()
    };
    assert!(read(&other, "one").stdout == files[0].1);
    assert!(read(&scanner, "one").stdout == files[0].1);
    // Also what is only on the disk.
    mount.run(&["hydrate", "--from", "HEAD", "two"]).ok();
    assert!(read(&scanner, "two").stdout == files[1].1);
    // What was fetched ahead for others is here.
    let denied = read(&scanner, "three");
    assert!(!denied.status.success() && denied.stdout.len() < files[2].1.len());
    mount.run(&["umount", &mount.shown()]).ok();
}

#[test]
fn in_a_store_on_this_machine_nothing_is_denied() {
    let world = World::with_snapshot();
    world.write("file", noise(1, 300_000));
    world.run_at_home(&["snapshot", "-m", "file"]).ok();
    let mountpoint = world.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let shown = mountpoint.display().to_string();
    world.run_at_home(&["mount", "--deny-hydrate", "scanner", &shown]).ok();
    let scanner = make_program(&world.path(""), "scanner");
    let read = Command::new(scanner).arg(mountpoint.join("file")).output().unwrap();
    world.run_at_home(&["umount", &shown]).ok();
    assert!(read.stdout == noise(1, 300_000));
}
