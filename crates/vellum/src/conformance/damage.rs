//! Damage of the store, and who can read it.

use std::fs;
use std::path::{Path, PathBuf};

use super::checked_out::noise;
use super::ground::TrialGround;
use super::{Promise, TrialResult, expect};

/// What nobody can have written by chance.
const MARK: &str = "a-name-and-a-content-that-nobody-else-has-5b1f0e";

pub const PROMISES: &[Promise] = &[
    Promise {
        name: "damage is found, and never read",
        how: "a byte of each pack flipped in turn; verify --all, export",
        check: try_flipped_bytes,
    },
    Promise {
        name: "damage is mended from where the content still is",
        how: "a pack removed, verify --repair from the files",
        check: try_repair,
    },
    Promise {
        name: "an encrypted store shows neither names nor content",
        how: "a name and a content looked for in all objects",
        check: try_encrypted_store,
    },
];

/// The files below a directory.
fn list_files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(list_files(&entry.path())?),
            false => found.push(entry.path()),
        }
    }
    Ok(found)
}

fn try_flipped_bytes(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let store = worktree.require_local_store()?;
    fs::write(worktree.tree.join("file"), noise(300_000, 1))?;
    worktree.snapshot("first")?;
    for pack in list_files(&store.join("packs"))? {
        let sound = fs::read(&pack)?;
        let mut damaged = sound.clone();
        let middle = damaged.len() / 2;
        damaged.iter_mut().skip(middle).take(1).for_each(|byte| *byte ^= 1);
        replace_file(&pack, &damaged)?;
        worktree.program.run(&worktree.tree, &["verify", "--all"])?.expect_code(&[1])?;
        let to = worktree.around.join("damaged");
        let exported =
            worktree.program.run(&worktree.tree, &["export", "first", "--to", &to.display().to_string()])?;
        // An export may succeed: the byte can be in a pack of which the file needs nothing.
        if exported.code == Some(0) {
            let same = fs::read(to.join("file"))? == fs::read(worktree.tree.join("file"))?;
            expect(same, || "wrong bytes were exported without an error".into())?;
        }
        let _ = fs::remove_dir_all(&to);
        replace_file(&pack, &sound)?;
    }
    worktree.verify()
}

/// Objects are read only: they are replaced, not written to.
fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::remove_file(path)?;
    fs::write(path, bytes)
}

fn try_repair(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&["--plain"])?;
    let store = worktree.require_local_store()?;
    fs::write(worktree.tree.join("file"), noise(300_000, 1))?;
    worktree.snapshot("first")?;
    // The largest one holds the content.
    let packs = list_files(&store.join("packs"))?;
    let largest = packs.iter().max_by_key(|pack| fs::metadata(pack).map_or(0, |found| found.len()));
    if let Some(pack) = largest {
        fs::remove_file(pack)?;
    }
    worktree.program.run(&worktree.tree, &["verify", "--all"])?.expect_code(&[1])?;
    worktree.run_ok(&["verify", "--all", "--repair"])?;
    let exported = worktree.export("first")?;
    let same = fs::read(exported.join("file"))? == fs::read(worktree.tree.join("file"))?;
    expect(same, || "what was mended has other content".into())
}

fn try_encrypted_store(ground: &TrialGround) -> TrialResult {
    let worktree = ground.make_worktree(&[])?;
    let store = worktree.require_local_store()?;
    fs::write(worktree.tree.join(MARK), MARK.repeat(2000))?;
    worktree.run_ok(&["snapshot", "-m", MARK, "--tag", "first"])?;
    for path in list_files(store)? {
        let bytes = fs::read(&path)?;
        let is_shown = |bytes: &[u8]| bytes.windows(MARK.len()).any(|window| window == MARK.as_bytes());
        expect(!is_shown(&bytes) && !is_shown(path.as_os_str().as_encoded_bytes()), || {
            format!("{} shows it", path.display())
        })?;
    }
    Ok(())
}
