//! The segments of a log in the folder of another one.

use std::path::Path;

use vellum_live::folder::{EngineFolder, LocalFolder, share};

use super::WriteLog;
use super::segment::{failed, name_of};
use crate::error::Result;

impl WriteLog {
    /// Shares all segments with the log of a new folder, and makes what they hold durable. What is appended here from
    /// now on does not matter there.
    pub fn share(&self, dir: &Path) -> Result<()> {
        let path = dir.display().to_string();
        let to = LocalFolder::open(dir).map_err(failed("make", path.clone()))?;
        self.sync()?;
        let segments: Vec<u64> = self.lock().segments.keys().copied().collect();
        for number in segments {
            let name = name_of(number);
            share(&*self.folder, &name, &to).map_err(failed("share", self.folder.describe(&name)))?;
        }
        to.sync().map_err(failed("flush", path))
    }
}
