//! Makes changes durable: first the data, then what refers to it.

use vellum_types::Ino;

use crate::error::Result;
use crate::fs::LiveFilesystem;

impl LiveFilesystem {
    /// Waits until all changes up to now survive a loss of power, those of other files, too: what survives is always
    /// all changes up to some moment.
    pub fn fsync(&self, _ino: Ino, _data_only: bool) -> Result<()> {
        self.sync_all()
    }

    /// Waits until all changes up to now survive a loss of power.
    pub fn sync_all(&self) -> Result<()> {
        // Read first: what this caller has done is committed by now, and what comes later is not its affair.
        let upto = self.last_commit();
        // The log before the journal: a journal that survives must not name content that does not.
        self.log.sync_log()?;
        self.tree.live_store().wait_until_durable(upto)?;
        // It is safe here, also when it belongs to nothing any more: but then the program must hear of it.
        self.check_lease()
    }
}
