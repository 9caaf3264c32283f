//! A mount as programs see it, through the kernel.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, RenameFlags, Timespec, Timestamps};

use crate::mounting::{Mount, sh, wait_until};
use crate::world::{World, noise, run};

#[test]
fn files_are_made_read_and_changed() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let path = mount.at("new");
    fs::write(&path, noise(300_000)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), noise(300_000));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"in between", 100_000).unwrap();
    file.set_len(150_000).unwrap();
    let mut expected = noise(150_000);
    expected[100_000..100_010].copy_from_slice(b"in between");
    assert_eq!(fs::read(&path).unwrap(), expected);
    File::options().append(true).open(&path).unwrap().write_all(b"end").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 150_003);
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    // A file of the snapshot, changed in the middle of its content.
    let old = File::options().write(true).open(mount.at("a.txt")).unwrap();
    old.write_all_at(b"TWO", 4).unwrap();
    assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "one\nTWO\nthree\n");
}

#[test]
fn a_worktree_far_below_the_root_can_be_mounted() {
    let world = World::empty();
    let folder = ["d"; 3].map(|letter| letter.repeat(100)).join("/");
    let tree = world.tree().join(&folder);
    fs::create_dir_all(&tree).unwrap();
    world.run_in(&folder, &["init", "--plain"]).ok();
    fs::write(tree.join("file"), "one").unwrap();
    world.run_in(&folder, &["snapshot"]).ok();
    let mount = Mount::place(&world, "work");
    let path = mount.path.to_str().unwrap();
    world.run_in(&folder, &["fork", "other", "--mount", path]).ok();
    fs::write(mount.at("file"), "two").unwrap();
    run(&mount.path, &["snapshot"], Stdio::null()).ok();
    assert!(world.run_in(&folder, &["mounts"]).ok().out.contains(path));
    mount.umount().ok();
}

#[test]
fn a_tree_that_goes_in_and_out_with_tar_is_the_same() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let source = world.path("source");
    fs::create_dir(&source).unwrap();
    sh(
        &source,
        "mkdir -p d/e/f empty; for i in $(seq 300); do head -c $((i * 97)) /dev/urandom > d/e/$i; done
         head -c 3000000 /dev/urandom > big; ln -s d/e link; ln big hard; mkfifo fifo; chmod 4711 d/e/7
         touch -d '1965-04-03 01:02:03.123456789' d/e/8; touch $'new\\nline'; chown 12:34 d/e/9",
    );
    let listing = "find . -printf '%p %y %m %U %G %s %T@ %n %l\\n' | grep -v '^\\. ' | sort; \
                   find . -type f -print0 | sort -z | xargs -0 sha256sum";
    let list = |dir: &Path| sh(dir, listing);
    // A directory's size is each filesystem's own affair.
    let normal = |text: String| {
        let of_dir = |line: &str| line.split(' ').nth(1) == Some("d");
        let without_size = |line: &str| {
            let fields: Vec<_> = line.split(' ').collect();
            [&fields[..5], &fields[6..]].concat().join(" ")
        };
        text.lines().map(|l| if of_dir(l) { without_size(l) } else { l.into() }).collect::<Vec<String>>()
    };
    mount.sh(&format!("mkdir in && tar -C {} --format=posix -cf - . | tar -C in -xpf -", source.display()));
    assert_eq!(normal(list(&mount.at("in"))), normal(list(&source)));
    let out = world.path("out");
    fs::create_dir(&out).unwrap();
    mount.umount().ok();
    mount.again(&[]).ok();
    sh(&out, &format!("tar -C {} --format=posix -cf - . | tar -xpf -", mount.at("in").display()));
    assert_eq!(normal(list(&out)), normal(list(&source)));
}

#[test]
fn names_move_and_are_exchanged() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, mount.at(from), CWD, mount.at(to), flags)
    };
    fs::rename(mount.at("dir"), mount.at("moved")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("moved/b.txt")).unwrap(), "b\n");
    fs::write(mount.at("x"), "x").unwrap();
    assert_eq!(rename("x", "a.txt", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("x", "moved", RenameFlags::EXCHANGE).unwrap();
    assert!(mount.at("x").is_dir() && mount.at("moved").is_file());
    fs::rename(mount.at("moved"), mount.at("a.txt")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "x");
    let error = fs::rename(mount.at("x"), mount.at("x/deep/in")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22));
}

#[test]
fn links_count_and_open_files_outlive_their_names() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    fs::hard_link(mount.at("a.txt"), mount.at("b")).unwrap();
    assert_eq!(fs::metadata(mount.at("a.txt")).unwrap().nlink(), 2);
    fs::remove_file(mount.at("a.txt")).unwrap();
    assert_eq!(fs::metadata(mount.at("b")).unwrap().nlink(), 1);
    let mut open = File::options().read(true).write(true).open(mount.at("b")).unwrap();
    fs::remove_file(mount.at("b")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    open.write_all(b"ONE").unwrap();
    let mut text = String::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "ONE\ntwo\nthree\n");
    symlink("dir/b.txt", mount.at("link")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("link")).unwrap(), "b\n");
    assert_eq!(fs::read_link(mount.at("link")).unwrap(), Path::new("dir/b.txt"));
}

#[test]
fn special_files_and_times_are_kept() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("mkfifo p; mknod c c 259 77777; mknod b b 8 1; python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind(\"s\")'");
    assert!(fs::metadata(mount.at("p")).unwrap().file_type().is_fifo());
    assert!(fs::metadata(mount.at("s")).unwrap().file_type().is_socket());
    let device = fs::metadata(mount.at("c")).unwrap();
    assert!(device.file_type().is_char_device());
    assert_eq!((rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev())), (259, 77777));
    let times = |secs, nanos| Timestamps {
        last_access: Timespec { tv_sec: secs, tv_nsec: nanos },
        last_modification: Timespec { tv_sec: secs, tv_nsec: nanos },
    };
    for (secs, nanos) in [(0, 0), (-2, 800_000_000), (5_000_000_000, 123_456_789), (-1_000_000, 0)] {
        rustix::fs::utimensat(CWD, mount.at("p"), &times(secs, nanos), AtFlags::empty()).unwrap();
        let found = fs::metadata(mount.at("p")).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (secs, nanos));
        assert_eq!((found.atime(), found.atime_nsec()), (secs, nanos));
    }
}

#[test]
fn a_file_keeps_the_time_at_which_it_was_written() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    for number in 0..20 {
        let path = mount.at(&format!("f{number}"));
        fs::write(&path, "first").unwrap();
        fs::write(&path, vec![b'x'; number * 1000]).unwrap();
    }
    let times = |mount: &Mount<'_>| -> Vec<_> {
        let metadata = |number| fs::metadata(mount.at(&format!("f{number}"))).unwrap();
        (0..20).map(metadata).map(|found| (found.mtime(), found.mtime_nsec(), found.ctime_nsec())).collect()
    };
    let before = times(&mount);
    // Not the later one at which the kernel handed it over.
    mount.umount().ok();
    mount.again(&[]).ok();
    assert_eq!(times(&mount), before);
}

#[test]
fn mapped_memory_is_the_file() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("python3 - <<'END'
import mmap
with open('m', 'w+b') as f:
    f.truncate(100000)
    with mmap.mmap(f.fileno(), 0) as m:
        m[0:5] = b'start'
        m[99995:] = b'close'
        m.flush()
    f.seek(99995)
    assert f.read() == b'close'
END");
    mount.umount().ok();
    mount.again(&[]).ok();
    let content = fs::read(mount.at("m")).unwrap();
    assert_eq!(content.len(), 100_000);
    assert!(content.starts_with(b"start\0") && content.ends_with(b"\0close"));
}

#[test]
fn extended_attributes_and_access_lists_are_kept() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("touch f; setfattr -n user.a -v one f; setfattr -n user.b -v two f; setfattr -x user.a f");
    let attributes = "getfattr --absolute-names -d f";
    assert!(mount.sh(attributes).contains("user.b=\"two\""));
    assert!(!mount.sh(attributes).contains("user.a"));
    mount.sh("setfacl -m u:1234:r,g:55:rwx f; mkdir d; setfacl -d -m u:1234:rx d; touch d/inherits");
    let before = mount.sh("getfacl -n f d d/inherits");
    assert!(before.contains("user:1234:r--") && before.contains("group:55:rwx"), "{before}");
    assert!(mount.sh("getfacl -n d/inherits").contains("user:1234:r-x"));
    mount.umount().ok();
    mount.again(&["--allow-other"]).ok();
    assert_eq!(mount.sh("getfacl -n f d d/inherits"), before);
    // The kernel goes by the list.
    mount.sh(
        "chmod o-rwx f && echo text > f && setpriv --reuid 1234 --regid 1234 --clear-groups cat f | grep -q text && \
         ! setpriv --reuid 1235 --regid 1235 --clear-groups cat f 2>/dev/null",
    );
}

#[test]
fn an_open_file_keeps_its_extended_attributes_when_a_restore_removes_it() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let list = "import os; print(os.listxattr(7), os.getxattr(7, 'user.a'))";
    let vellum = env!("CARGO_BIN_EXE_vellum");
    let shown = mount.sh(&format!(
        "touch f; setfattr -n user.a -v one f; exec 7<f; {vellum} restore --discard first >&2; python3 -c \"{list}\""
    ));
    assert_eq!(shown.trim(), "['user.a'] b'one'");
}

#[test]
fn sparse_files_stay_sparse() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let file = File::create_new(mount.at("s")).unwrap();
    file.write_all_at(b"data", 10 << 20).unwrap();
    file.set_len(1 << 40).unwrap();
    file.sync_all().unwrap();
    let seek = |whence| rustix::fs::seek(&file, whence);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(10 << 20));
    // The kernel writes whole pages.
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(10 << 20)), Ok((10 << 20) + 4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(20 << 20)), Err(rustix::io::Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, (10 << 20) + 1, 2).unwrap();
    let mut bytes = [1; 6];
    File::open(mount.at("s")).unwrap().read_exact_at(&mut bytes, (10 << 20) - 1).unwrap();
    assert_eq!(&bytes, b"\0d\0\0a\0");
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 41, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 40);
}

#[test]
fn data_that_only_the_kernel_has_is_found_by_seeking() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let file = File::create_new(mount.at("s")).unwrap();
    file.write_all_at(b"data", 1 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    file.write_all_at(b"more", 3 << 20).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(2 << 20)), Ok(3 << 20));
    // A hole that was filled, and a file that became longer.
    file.write_all_at(&noise(1 << 20), 2 << 20).unwrap();
    file.write_all_at(b"end", (3 << 20) + 5000).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(2 << 20)), Ok((3 << 20) + 4));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole((3 << 20) + 4096)), Ok((3 << 20) + 5003));
}

/// What programs have read through a mount that the kernel did not have, bytes.
fn read_bytes(mount: &Mount<'_>) -> u64 {
    let stats = fs::read_to_string(mount.at(".vellum/stats")).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("vellum_fuse_read_bytes_total ")).unwrap();
    line.parse().unwrap()
}

#[test]
fn seeking_for_holes_leaves_pages_in_memory() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let content = noise(8 << 20);
    fs::write(mount.at("large"), &content).unwrap();
    mount.sh("sync large");
    let file = File::open(mount.at("large")).unwrap();
    let before = read_bytes(&mount);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)), Ok(4096));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(8 << 20));
    assert!(fs::read(mount.at("large")).unwrap() == content);
    let read = read_bytes(&mount) - before;
    assert!(read < 4 << 20, "{read} bytes of what was in memory were read again");
}

#[test]
fn ranges_are_copied_within_a_mount() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let content = noise(500_000);
    fs::write(mount.at("from"), &content).unwrap();
    let from = File::open(mount.at("from")).unwrap();
    let to = File::create_new(mount.at("to")).unwrap();
    let mut offset_in = 1000;
    let mut offset_out = 5;
    let copied =
        rustix::fs::copy_file_range(&from, Some(&mut offset_in), &to, Some(&mut offset_out), 400_000)
            .unwrap();
    assert!(copied > 0);
    let found = fs::read(mount.at("to")).unwrap();
    assert_eq!(found[..5], [0; 5]);
    assert_eq!(found[5..5 + copied], content[1000..1000 + copied]);
}

#[test]
fn a_directory_is_emptied_while_it_is_read() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("mkdir d; for i in $(seq 3000); do : > d/$i; done");
    let mut removed = 0;
    for entry in fs::read_dir(mount.at("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 3000);
    fs::remove_dir(mount.at("d")).unwrap();
}

#[test]
fn what_moves_away_while_its_directory_is_read_is_not_found_there_afterwards() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh(
        "mkdir d e; for i in $(seq 3000); do : > d/$i; done; for i in $(seq 3000); do mkdir d/dir$i; done",
    );
    let mut read = 0;
    let mut moved = Vec::new();
    for entry in fs::read_dir(mount.at("d")).unwrap() {
        // The kernel asks for attributes beside the names as long as somebody looks at them.
        fs::symlink_metadata(entry.unwrap().path()).ok();
        read += 1;
        if read == 100 {
            for number in 1..=3000 {
                for name in [format!("d/{number}"), format!("d/dir{number}")] {
                    let from = mount.at(&name);
                    let to = mount.at(&name.replace("d/", "e/"));
                    fs::rename(&from, to).unwrap();
                    moved.push(from);
                }
            }
        }
    }
    assert_eq!(moved.len(), 6000);
    let found = moved.iter().filter(|path| path.symlink_metadata().is_ok()).count();
    assert_eq!(found, 0, "names that were moved away are found in the directory that they left");
}

#[test]
fn a_repository_is_cloned_and_sound() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    let origin = world.path("origin");
    fs::create_dir(&origin).unwrap();
    sh(
        &origin,
        "git init -q -b main . && git config user.email a@b && git config user.name n
         for r in 1 2 3; do mkdir -p d$r; for i in $(seq 50); do seq $((r * i)) > d$r/$i; done
         git add -A && git commit -q -m $r; done",
    );
    mount.sh(&format!("git clone -q --no-local {} clone && cd clone && git fsck --strict", origin.display()));
    mount.sh("cd clone && test -z \"$(git status --porcelain)\" && git log --oneline | wc -l | grep -qx 3");
    mount.sh("cd clone && echo more >> d1/1 && git -c user.email=a@b -c user.name=n commit -qam x && git gc -q && git fsck --strict");
}

#[test]
fn set_id_bits_go_when_somebody_else_writes() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh(
        "echo x > f; chmod 6777 f; setpriv --reuid 1234 --regid 1234 --clear-groups bash -c 'echo y >> f'",
    );
    let mode = fs::metadata(mount.at("f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o777);
    mount.sh("chmod 6777 f; setpriv --reuid 1234 --regid 1234 --clear-groups truncate -s 1 f");
    let mode = fs::metadata(mount.at("f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o777);
}

#[test]
fn the_umask_counts_and_groups_are_inherited() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("umask 027; touch f; mkdir d; chown :77 d; chmod g+s d; mkdir d/sub; touch d/file");
    let mode = |name: &str| fs::metadata(mount.at(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d/sub"), mode("d/file")), (0o640, 0o2750, 0o640));
    assert_eq!(fs::metadata(mount.at("d/file")).unwrap().gid(), 77);
}

#[test]
fn every_snapshot_is_below_the_virtual_directory() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    world.write("a.txt", "later");
    let second = world.snapshot("second");
    let names: Vec<_> = fs::read_dir(&mount.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == ".vellum"));
    let snapshots = mount.at(".vellum/snapshots");
    assert_eq!(fs::read_to_string(snapshots.join(&second).join("a.txt")).unwrap(), "later");
    assert_eq!(fs::read_to_string(snapshots.join(&second[..10]).join("a.txt")).unwrap(), "later");
    assert_eq!(fs::read_to_string(snapshots.join("first/a.txt")).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(fs::read_link(snapshots.join("second")).unwrap(), Path::new(&second));
    let listed: Vec<_> = fs::read_dir(&snapshots).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert!(!snapshots.join("third").exists());
    let error = fs::write(snapshots.join("first/a.txt"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    mount.sh("cd .vellum/snapshots/first/dir && cat ../a.txt deep/c.bin > /dev/null && test \"$(ls ..)\" = $'a.txt\\ndir'");
    // A snapshot that comes later shows without mounting anew.
    world.write("a.txt", "third");
    world.snapshot("third");
    // (The kernel may believe for a second that there is none.)
    wait_until("it shows", || snapshots.join("third").exists());
    assert_eq!(fs::read_to_string(snapshots.join("third/a.txt")).unwrap(), "third");
}

#[test]
fn the_virtual_directory_cannot_be_changed() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    assert!(fs::create_dir(mount.at(".vellum")).is_err());
    assert!(fs::remove_dir(mount.at(".vellum")).is_err());
    assert!(fs::rename(mount.at("dir"), mount.at(".vellum")).is_err());
    assert!(fs::rename(mount.at(".vellum"), mount.at("x")).is_err());
    assert!(fs::write(mount.at(".vellum/x"), "x").is_err());
    assert!(fs::write(mount.at(".vellum/stats"), "x").is_err());
    assert!(mount.at("dir/b.txt").exists());
    // No snapshot would hold it deeper down, either.
    assert!(fs::create_dir(mount.at("dir/.vellum")).is_err());
}

#[test]
fn what_the_mount_does_is_counted_and_logged() {
    let world = World::with_snapshot();
    let mount = Mount::new(&world, "work");
    let before = mount.request_count("mkdir");
    fs::create_dir(mount.at("d")).unwrap();
    assert_eq!(mount.request_count("mkdir"), before + 1);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let log = rustix::fs::open(mount.at(".vellum/accesslog"), flags, Mode::empty()).unwrap();
    let mut log = File::from(log);
    let mut text = String::new();
    // It takes a moment from the opening until lines are made.
    for number in 0.. {
        fs::create_dir(mount.at(&format!("e{number}"))).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        let mut bytes = [0; 4096];
        match log.read(&mut bytes) {
            Ok(len) => text += std::str::from_utf8(&bytes[..len]).unwrap(),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        if text.contains("mkdir") {
            break;
        }
    }
    let line = text.lines().find(|line| line.contains("mkdir")).unwrap();
    assert!(
        line.contains("[uid:0,gid:0,pid:")
            && line.contains("mkdir (1,\"e")
            && line.contains("\",0777,0")
            && line.contains("): ok ")
    );
}

#[test]
fn locks_are_the_kernels() {
    let world = World::new();
    let mount = Mount::new(&world, "work");
    mount.sh("flock -x lock bash -c '! flock -n -x lock true' && flock -n -x lock true");
}
