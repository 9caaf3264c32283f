//! A backup of a consistent state, while the worktree is written on: `cargo run --example backup`.

use std::fs;

use vellum_library::{FileKind, Result, Tree, Volume};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let volume = Volume::create(dir.path().join("volume"))?.volume;
    let work = volume.create_worktree("work", None)?;
    work.mkdir_all("accounts/2026")?;
    work.write("accounts/2026/november", "open")?;

    // What is written from now on is not in the view.
    let view = work.open_view()?;
    work.write("accounts/2026/november", "closed")?;

    let target = dir.path().join("backup");
    let mut count = 0;
    for entry in view.walk("") {
        let entry = entry?;
        let path = target.join(&entry.path);
        match entry.metadata.kind() {
            FileKind::Dir => fs::create_dir_all(&path).expect("a directory"),
            FileKind::File => {
                fs::write(&path, view.read(&entry.path)?).expect("a file");
                count += 1;
            }
            // This program keeps nothing else.
            _ => {}
        }
    }
    let saved = fs::read_to_string(target.join("accounts/2026/november")).expect("the copy");
    println!(
        "{count} file, which says {saved:?}; the worktree says {:?}",
        work.read("accounts/2026/november")?
    );
    Ok(())
}
