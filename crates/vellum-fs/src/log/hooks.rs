//! The connection of live metadata and the write log: data is on the disk before an entry that refers to it.

use std::io;
use std::sync::Arc;

use vellum_live::DurabilityHooks;
use vellum_types::{Extent, ExtentSource, MapKeyRef};

use super::WriteLog;
use crate::error::FsError;
use crate::tree::head::parse_map_key;

/// The write log as an engine of live metadata sees it.
#[derive(Clone)]
pub struct LogHooks(pub Arc<WriteLog>);

impl DurabilityHooks for LogHooks {
    fn before_sync(&self) -> io::Result<()> {
        self.0.sync_log().map_err(|error| match error {
            FsError::Log { source, .. } => source,
            other => io::Error::other(other),
        })
    }

    fn is_intact(&self, key: &[u8], value: &[u8]) -> bool {
        // A tombstone is no extent, and what is no extent names nothing in the log.
        let is_extent =
            parse_map_key(key).is_some_and(|key| matches!(MapKeyRef::parse(key), Ok(MapKeyRef::Extent(..))));
        match Extent::decode(value) {
            Ok(Extent { len, source: ExtentSource::WriteLog { segment, offset } }) if is_extent => {
                self.0.is_data_intact(segment, offset, len)
            }
            _ => true,
        }
    }
}
