//! Promises of worktrees that are directories.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::ground::{TrialGround, TrialWorktree};
use super::{Promise, TrialResult, TrialStop, expect};

/// Commands that run at once.
const AT_ONCE: usize = 4;

pub const PROMISES: &[Promise] = &[
    Promise {
        name: "what is written can be made durable",
        how: "fsync of a file and of its directory",
        check: try_flushes,
    },
    Promise {
        name: "an edit is noticed whose size and times are as before",
        how: "an edit in place, times set back, status",
        check: try_hidden_edit,
    },
    Promise {
        name: "a snapshot never changes",
        how: "files edited, deleted and added after it, export",
        check: try_unchanging_snapshot,
    },
    Promise {
        name: "restore loses no work",
        how: "an edit that no snapshot has, restore, restore of the safety snapshot",
        check: try_safety_snapshot,
    },
    Promise {
        name: "concurrent snapshots are all kept",
        how: "4 processes at once, history",
        check: try_concurrent_snapshots,
    },
    Promise {
        name: "gc removes only what nothing needs",
        how: "gc beside a snapshot, after one was forgotten; verify --all",
        check: try_collection,
    },
    Promise {
        name: "a copy of a worktree changes nothing of the original",
        how: "a copied directory, snapshot in both",
        check: try_copied_worktree,
    },
    Promise {
        name: "only the owner can read the key",
        how: "the mode of the key of an encrypted volume",
        check: try_key_mode,
    },
];

/// A file of a worktree that has this content.
pub fn expect_content(path: &Path, content: &str) -> TrialResult {
    let found = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
    expect(found == content, || format!("{} has {found:?}, and not {content:?}", path.display()))
}

fn try_flushes(ground: &TrialGround) -> TrialResult {
    let path = ground.root().join("flushed");
    let mut file = File::create(&path)?;
    file.write_all(b"content")?;
    file.sync_all().map_err(|error| TrialStop::Broken(format!("fsync of a file: {error}")))?;
    let dir = File::open(ground.root())?;
    dir.sync_all().map_err(|error| TrialStop::Broken(format!("fsync of a directory: {error}")))
}

fn try_hidden_edit(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let path = worktree.tree.join("file");
    fs::write(&path, "one")?;
    worktree.snapshot("first")?;
    let modified = fs::metadata(&path)?.modified()?;
    let mut file = File::options().write(true).open(&path)?;
    file.write_all(b"two")?;
    // With the length and the time of the content that was recorded, only the time of change (ctime) tells of the edit.
    file.set_modified(modified)?;
    drop(file);
    // With 1, there are changes.
    worktree.program.run(&worktree.tree, &["status"])?.expect_code(&[1]).map(drop)
}

fn try_unchanging_snapshot(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let write = |name: &str, content: &str| fs::write(worktree.tree.join(name), content);
    write("edited", "before")?;
    write("deleted", "before")?;
    worktree.snapshot("first")?;
    write("edited", "after")?;
    write("added", "after")?;
    fs::remove_file(worktree.tree.join("deleted"))?;
    worktree.snapshot("second")?;
    let exported = worktree.export("first")?;
    expect_content(&exported.join("edited"), "before")?;
    expect_content(&exported.join("deleted"), "before")?;
    expect(!exported.join("added").exists(), || "it has a file that was added after it".into())
}

fn try_safety_snapshot(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let path = worktree.tree.join("file");
    fs::write(&path, "first")?;
    worktree.snapshot("first")?;
    fs::write(&path, "edited")?;
    worktree.run_ok(&["restore", "first"])?;
    expect_content(&path, "first")?;
    let history = worktree.program.run_json(&worktree.tree, &["history", "--all"])?;
    let snapshots = history["snapshots"].as_array().map_or(&[][..], Vec::as_slice);
    let safety = snapshots.iter().find(|snapshot| snapshot["origin"] == "safety");
    let safety = safety.and_then(|snapshot| snapshot["id"].as_str());
    let safety = safety.ok_or_else(|| TrialStop::Broken("there is no safety snapshot".into()))?;
    worktree.run_ok(&["restore", safety])?;
    expect_content(&path, "edited")
}

fn try_concurrent_snapshots(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    fs::write(worktree.tree.join("file"), "content")?;
    let notes: Vec<_> = (1..=AT_ONCE).map(|number| format!("snapshot {number}")).collect();
    let program = worktree.program;
    let mut running = Vec::new();
    for (number, note) in notes.iter().enumerate() {
        let args = ["snapshot", "--quiet", "-m", note.as_str()];
        running.push((program.spawn(&worktree.tree, &args, number + 1)?, args, number + 1));
    }
    for (child, args, number) in running {
        program.wait(child, &args, number)?.expect_code(&[0])?;
    }
    let found = list_notes(&worktree)?;
    let missing = notes.iter().find(|note| !found.contains(note));
    expect(missing.is_none(), || format!("'{}' is not in the history", missing.map_or("", String::as_str)))
}

/// The notes of the snapshots in the history of a worktree.
pub fn list_notes(worktree: &TrialWorktree<'_>) -> TrialResult<Vec<String>> {
    let history = worktree.program.run_json(&worktree.tree, &["history", "-n", "0"])?;
    let snapshots = history["snapshots"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(snapshots.iter().filter_map(|snapshot| snapshot["note"].as_str().map(String::from)).collect())
}

fn try_collection(ground: &TrialGround) -> TrialResult {
    // The collector and a snapshot are two writers at once.
    ground.require_several_writers()?;
    let worktree = ground.make_worktree(&["--plain"])?;
    let path = worktree.tree.join("file");
    let mut ids = Vec::new();
    for number in 0..3_u8 {
        fs::write(&path, noise(200_000, number))?;
        ids.push(worktree.run_ok(&["snapshot", "--quiet"])?);
    }
    let forgotten = ids.get(1).map(String::as_str).unwrap_or_default();
    worktree.run_ok(&["forget", forgotten])?;
    fs::write(worktree.tree.join("new"), noise(200_000, 9))?;
    let snapshot = ["snapshot", "--quiet", "--tag", "beside"];
    let collection = ["gc", "run"];
    let writer = worktree.program.spawn(&worktree.tree, &snapshot, 1)?;
    let collector = worktree.program.spawn(&worktree.tree, &collection, 2)?;
    worktree.program.wait(writer, &snapshot, 1)?.expect_code(&[0])?;
    // With 1, it deletes nothing while somebody writes.
    worktree.program.wait(collector, &collection, 2)?.expect_code(&[0, 1])?;
    worktree.program.run(&worktree.tree, &collection)?.expect_code(&[0])?;
    worktree.verify()?;
    let exported = worktree.export("beside")?;
    let same = |name: &str| {
        Ok::<_, TrialStop>(fs::read(exported.join(name))? == fs::read(worktree.tree.join(name))?)
    };
    expect(same("file")? && same("new")?, || "a snapshot has other content than the directory".into())
}

fn try_copied_worktree(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    fs::write(worktree.tree.join("file"), "content")?;
    worktree.snapshot("first")?;
    let copy = worktree.around.join("copy");
    copy_tree(&worktree.tree, &copy)?;
    fs::write(copy.join("file"), "of the copy")?;
    let refused = worktree.program.run(&copy, &["snapshot"])?;
    expect(refused.code == Some(2), || "the copy could make a snapshot".into())?;
    fs::write(worktree.tree.join("file"), "of the original")?;
    worktree.snapshot("second").map(drop)
}

/// Copies directories and plain files, with their modes.
fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()? {
            kind if kind.is_dir() => copy_tree(&entry.path(), &target)?,
            kind if kind.is_file() => drop(fs::copy(entry.path(), target)?),
            _ => {}
        }
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}

fn try_key_mode(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&[])?;
    let mode = fs::metadata(worktree.tree.join(".vellum/key"))?.permissions().mode() & 0o777;
    expect(mode == 0o600, || format!("the key has mode {mode:04o}: the filesystem keeps no permissions"))
}

/// Bytes that no compressor makes smaller, the same for each seed.
pub fn noise(len: usize, seed: u8) -> Vec<u8> {
    // xorshift64, as Marsaglia gave it.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (u64::from(seed) << 32 | 1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}
