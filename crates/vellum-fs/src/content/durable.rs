//! Makes changes durable: first the data, then what refers to it.

use super::LiveContent;
use crate::error::Result;

impl LiveContent {
    /// Waits until all changes up to now survive a loss of power. Nothing less is offered for one file: what survives is
    /// always all changes up to some moment.
    pub fn sync_all(&self) -> Result<()> {
        // Read first: what this caller has done is committed by now, and what comes later is not its affair.
        let upto = self.map.last_commit();
        // The log before the journal: a journal that survives must not name content that does not.
        self.log.sync_log()?;
        self.map.live_store().wait_until_durable(upto)?;
        // It is safe here, also when it belongs to nothing any more: but then the program must hear of it.
        self.lease.check_held()
    }
}
