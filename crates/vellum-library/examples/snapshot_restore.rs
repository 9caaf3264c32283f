//! Files are written, a snapshot keeps them, and a mistake is undone: `cargo run --example snapshot_restore`.

use vellum_library::{Result, Tree, Volume};

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let created = Volume::create(dir.path())?;
    let work = created.volume.create_worktree("work", None)?;

    work.mkdir_all("project/src")?;
    work.write("project/src/main.rs", "fn main() {}\n")?;
    let good = work.create_snapshot_with_tags("it compiles", &["good"])?;
    println!("snapshot {good}");

    work.write("project/src/main.rs", "fn main() {\n")?;
    work.remove_all("project/src")?;

    // What no snapshot has is saved in one before.
    let saved = work.restore_snapshot("good")?;
    println!("restored; the mistake is in {}", saved.expect("there were changes"));
    for found in work.walk("project") {
        println!("{}", found?.path.display());
    }
    work.flush()
}
