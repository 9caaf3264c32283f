//! Files of plans, in a directory that only this user can read, outside every worktree.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::command_line::{CommandFailure, CommandResult};

/// The directory, which is made when it is first needed, and removed when this is dropped.
#[derive(Default)]
pub struct PlanFolder {
    dir: Mutex<Option<PathBuf>>,
}

impl PlanFolder {
    /// Removes the directory with all plans.
    pub fn remove(&self) {
        if let Some(dir) = self.dir.lock().take() {
            // What stays is in the directory for temporary files.
            let _ = fs::remove_dir_all(dir);
        }
    }

    /// Where the file of a plan belongs.
    pub fn file(&self, id: &str) -> CommandResult<PathBuf> {
        // Held until it is made, so that two plans at once get the same directory.
        let mut dir = self.dir.lock();
        let made = match &*dir {
            Some(made) => made.clone(),
            None => {
                let path = std::env::temp_dir().join(format!("vellum-plans-{}", draw_id()?));
                // Fails if somebody else was there first.
                let made = DirBuilder::new().mode(0o700).create(&path);
                made.map_err(|error| {
                    CommandFailure::new("io", format!("cannot make {}: {error}", path.display()))
                })?;
                dir.insert(path).clone()
            }
        };
        Ok(made.join(id))
    }
}

impl Drop for PlanFolder {
    fn drop(&mut self) {
        self.remove();
    }
}

/// An id that nobody guesses, 16 hexadecimal digits.
pub fn draw_id() -> CommandResult<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|_| CommandFailure::new("io", "the system has no random bytes"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
