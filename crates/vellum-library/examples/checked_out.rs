//! Snapshots of a directory of plain files, which other programs use as any: `cargo run --example checked_out`.

use std::fs;

use vellum_library::{Checkout, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let dir = temporary.path().join("experiment");
    Volume::create(&dir)?;
    fs::write(dir.join("parameters"), "rate = 0.1")?;

    let experiment = Checkout::open(&dir)?;
    let before = experiment.create_snapshot("before the run")?;
    fs::write(dir.join("parameters"), "rate = 0.5")?;
    for change in experiment.list_changes()?.changes {
        println!("{:?}: {}", change.kind, String::from_utf8_lossy(change.path()));
    }

    // The directory is as before; what the run had changed is in a snapshot.
    let restored = experiment.restore_snapshot(&before.id.to_string())?;
    println!("{}", fs::read_to_string(dir.join("parameters"))?);
    println!("kept: {}", restored.safety.is_some());

    // Another directory with the same files.
    let fork = experiment.fork_worktree("second", temporary.path().join("second"), "HEAD")?;
    println!("{} in {}", fork.name(), fork.root_path().display());
    Ok(())
}
