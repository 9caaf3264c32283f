//! An old snapshot is read beside the worktree that goes on: `cargo run --example old_snapshot`.

use std::io::{BufRead, BufReader};

use vellum_library::{Result, Tree, Volume};

/// Works on anything that can be read: a worktree, a view, a snapshot.
fn count_lines(tree: &impl Tree, path: &str) -> Result<usize> {
    Ok(BufReader::new(tree.open(path)?).lines().count())
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let volume = Volume::create(dir.path())?.volume;
    let work = volume.create_worktree("work", None)?;
    for day in 1..=3 {
        work.write("diary", "dear diary\n".repeat(day))?;
        work.create_snapshot(&format!("day {day}"))?;
    }
    for info in work.list_snapshots()? {
        let snapshot = work.open_snapshot(&info.id.to_string())?;
        println!("{}: {} lines", info.note, count_lines(&snapshot, "diary")?);
    }
    let view = work.open_view()?;
    work.write("diary", "")?;
    println!(
        "now: {} lines; a moment ago: {}",
        count_lines(work.root(), "diary")?,
        count_lines(&view, "diary")?
    );
    Ok(())
}
