//! An old snapshot is read beside the worktree that goes on: `cargo run --example old_snapshot`.

use std::io::{BufRead, BufReader};

use vellum_library::{Result, Tree, Volume};

/// Works on anything that can be read: a worktree, a view, a snapshot.
fn lines(tree: &impl Tree, path: &str) -> Result<usize> {
    Ok(BufReader::new(tree.open(path)?).lines().count())
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let volume = Volume::create(dir.path())?.volume;
    let work = volume.create_worktree("work", None)?;
    for day in 1..=3 {
        work.write("diary", "dear diary\n".repeat(day))?;
        work.snapshot(&format!("day {day}"))?;
    }
    for info in work.snapshots()? {
        let snapshot = work.open_snapshot(&info.id.to_string())?;
        println!("{}: {} lines", info.note, lines(&snapshot, "diary")?);
    }
    let view = work.view()?;
    work.write("diary", "")?;
    println!("now: {} lines; a moment ago: {}", lines(work.root(), "diary")?, lines(&view, "diary")?);
    Ok(())
}
