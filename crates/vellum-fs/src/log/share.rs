//! Sharing the segments of a log with the directory of another one.

use std::path::Path;

use vellum_live::folder::{EngineFolder, LocalFolder, link_or_copy_file};

use super::WriteLog;
use super::segment::{format_segment_name, wrap_io_error};
use crate::error::Result;

impl WriteLog {
    /// Shares all segments with the log of a new folder, and makes what they hold durable. What is appended here from
    /// now on does not matter there.
    pub fn share_segments(&self, dir: &Path) -> Result<()> {
        let path = dir.display().to_string();
        let to = LocalFolder::open(dir).map_err(wrap_io_error("make", path.clone()))?;
        // Before the segments are listed: then the links that are made hold everything that was appended
        // until now, and it is durable.
        self.sync_log()?;
        let segments: Vec<u64> = self.state.lock().segments.keys().copied().collect();
        for number in segments {
            let name = format_segment_name(number);
            link_or_copy_file(&*self.folder, &name, &to)
                .map_err(wrap_io_error("share", self.folder.describe_file(&name)))?;
        }
        to.sync_folder().map_err(wrap_io_error("flush", path))
    }
}
