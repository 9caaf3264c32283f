//! From an address to an opened log.

use std::sync::Arc;

use vellum_store::ObjectStore;

use crate::address::{LogAddress, LogEngine};
use crate::error::SharedLogError;
use crate::etcd_log::EtcdLog;
use crate::key_space::LogKeySpace;
use crate::log::SharedLog;
use crate::object_log::ObjectLog;
use crate::postgres_log::PostgresLog;
use crate::redis_log::RedisLog;

/// Opens the log of a worktree. `objects` is the volume's store, which holds the log if the address is `store:`.
/// Connects to any other engine; fails with [`SharedLogError::Unfit`] if it cannot hold a log, and says what to change.
pub fn open_shared_log(
    address: &LogAddress,
    key_space: &LogKeySpace,
    objects: Arc<dyn ObjectStore>,
) -> Result<Arc<dyn SharedLog>, SharedLogError> {
    Ok(match address.engine {
        LogEngine::Store => Arc::new(ObjectLog::new(objects, key_space.worktree())?),
        LogEngine::Redis => Arc::new(RedisLog::open(address, key_space)?),
        LogEngine::Postgres => Arc::new(PostgresLog::open(address, key_space)?),
        LogEngine::Etcd => Arc::new(EtcdLog::open(address, key_space)?),
    })
}
