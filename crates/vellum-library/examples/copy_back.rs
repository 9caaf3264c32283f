//! One directory of a snapshot comes back; everything else stays as it is: `cargo run --example copy_back`.

use vellum_library::{Result, Tree, Volume};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let volume = Volume::create(dir.path())?.volume;
    let work = volume.create_worktree("work", None)?;
    work.mkdir("photos")?;
    work.write("photos/one", vec![1; 1 << 20])?;
    work.link("photos/one", "photos/the same")?;
    let id = work.create_snapshot("before the cleaning")?.to_string();

    work.remove_all("photos")?;
    work.write("notes", "written since")?;

    // Content is shared with the snapshot, not copied, and links are links again.
    let snapshot = work.open_snapshot(&id)?;
    work.copy_from(&snapshot, "photos", "photos")?;
    println!("photos/one has {} names", work.stat("photos/one")?.links());
    println!("notes: {}", String::from_utf8_lossy(&work.read("notes")?));
    Ok(())
}
