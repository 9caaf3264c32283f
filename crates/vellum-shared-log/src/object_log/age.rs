//! How long ago a server renewed its claim, by the store's clock.
//!
//! An object that is written now tells the store's present time; the head's time is compared with it, and no machine's
//! clock is. Where the store tells no times, or cannot be written to, what counts is for how long this process has seen
//! the head unchanged.

use std::time::{Duration, Instant, SystemTime};

use vellum_crypto::fill_random;
use vellum_store::{ObjectKey, StoreError};
use vellum_types::ErrorKind;

use super::head::LogHead;
use super::{HEADS_FOLDER, ObjectLog};
use crate::error::SharedLogError;
use crate::log::{LogIncarnation, ServerSighting};

/// The folder, beside the appends, of objects that are written to learn the store's time.
pub(super) const CLOCK_FOLDER: &str = "clock";

/// Since when this process has seen the head unchanged.
#[derive(Default)]
pub(super) struct HeadWatch {
    seen: Option<(LogIncarnation, u64, Instant)>,
}

impl HeadWatch {
    /// For how long the head has surely been as it is.
    pub(super) fn observe_head(&mut self, head: &LogHead) -> Duration {
        let now = Instant::now();
        match self.seen {
            Some((incarnation, renewals, since))
                if (incarnation, renewals) == (head.incarnation, head.renewals) =>
            {
                now.duration_since(since)
            }
            _ => {
                self.seen = Some((head.incarnation, head.renewals, now));
                Duration::ZERO
            }
        }
    }
}

impl ObjectLog {
    /// The server that a head names, and the age of its claim.
    pub(super) fn describe_server(&self, head: LogHead) -> Result<Option<ServerSighting>, SharedLogError> {
        let observed = self.state.lock().watch.observe_head(&head);
        let (Some(epoch), Some(server)) = (head.current_epoch(), head.server) else { return Ok(None) };
        // A renewal between the two reads makes it look younger, never older.
        let age = self.read_head_age()?.unwrap_or_default().max(observed);
        Ok(Some(ServerSighting { server, epoch, age, released: head.is_released }))
    }

    /// The age of the head by the store's clock; None if that cannot be learned.
    fn read_head_age(&self) -> Result<Option<Duration>, SharedLogError> {
        // Whoever cannot write cannot claim, either, and only wants to show who serves.
        if self.objects.is_read_only() {
            return Ok(None);
        }
        let mut number = [0; 8];
        // A name of its own: of two processes, one would otherwise read the time of the other's object, or find it deleted.
        fill_random(&mut number);
        let folder = format!("{}/{CLOCK_FOLDER}", self.folder);
        let probe = ObjectKey::new(format!("{folder}/{:016x}", u64::from_le_bytes(number)))
            .map_err(|error| self.wrap_error(&error))?;
        match self.objects.put_object(&probe, b"clock") {
            Ok(()) => {}
            // Who may only read the store learns less.
            Err(error) if error.kind() == ErrorKind::Denied => return Ok(None),
            Err(error) => return Err(self.wrap_error(&error)),
        }
        let times = self.read_time(&folder, &probe).and_then(|present| {
            let written = self.read_time(HEADS_FOLDER, &self.head_key)?;
            Ok(present.zip(written))
        });
        // Before the times are looked at, so that a failure to read them leaves nothing behind.
        self.objects.delete_object(&probe).map_err(|error| self.wrap_error(&error))?;
        let times = times.map_err(|error| self.wrap_error(&error))?;
        // What is dated ahead was written before the store's clock was set back: it is young.
        Ok(times.map(|(present, written)| present.duration_since(written).unwrap_or_default()))
    }

    fn read_time(&self, folder: &str, key: &ObjectKey) -> Result<Option<SystemTime>, StoreError> {
        // Listings are the only answers of a store that have times in them.
        let listed = self.objects.list_objects(folder)?;
        Ok(listed.into_iter().find(|info| info.key == *key).and_then(|info| info.modified))
    }
}
