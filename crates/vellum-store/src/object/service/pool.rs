//! What all requests of this process to one store share: how many are under way, and what was counted.
//!
//! Invariant: there is one pool for each store and name of credentials, however often the store is opened.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vellum_host::per_process::PerProcess;

use super::gate::RequestGate;
use super::hedge::HedgePolicy;
use crate::object::traffic::{ServiceTraffic, TrafficMeter};
use crate::object::{PerPurpose, RequestPurpose};

/// Reads under way at once, a count.
const READS_MAX: u32 = 32;
/// Writes, listings and deletions under way at once, a count.
const WRITES_MAX: u32 = 8;

/// Pools of stores that are open, by address and name of the credentials.
// Those of the process before a fork count requests that will never end here.
static POOLS: PerProcess<Mutex<HashMap<PoolKey, Weak<RequestPool>>>> = PerProcess::new();

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    location: String,
    credentials: Option<String>,
}

/// The requests of this process to one store.
pub(super) struct RequestPool {
    pub reads: Arc<RequestGate>,
    pub writes: Arc<RequestGate>,
    pub traffic: Arc<TrafficMeter>,
    pub hedging: HedgePolicy,
}

impl RequestPool {
    /// The pool of a store, which is made if the store is not open.
    pub fn for_store(location: &str, credentials: Option<&str>) -> Arc<Self> {
        let key = PoolKey { location: location.to_owned(), credentials: credentials.map(str::to_owned) };
        let mut pools = POOLS.get_or_init(Mutex::default).lock();
        if let Some(pool) = pools.get(&key).and_then(Weak::upgrade) {
            return pool;
        }
        // Nothing else removes the entries of stores that were closed.
        pools.retain(|_, pool| pool.strong_count() > 0);
        let pool = Arc::new(Self {
            reads: RequestGate::new(READS_MAX),
            writes: RequestGate::new(WRITES_MAX),
            traffic: Arc::default(),
            hedging: HedgePolicy::default(),
        });
        pools.insert(key, Arc::downgrade(&pool));
        pool
    }

    /// Requests so far, and those under way.
    pub fn read_traffic(&self) -> ServiceTraffic {
        let reads = self.reads.active_requests();
        let writes = self.writes.active_requests();
        let mut under_way = PerPurpose::default();
        for purpose in RequestPurpose::ALL {
            *under_way.get_mut(purpose) = reads.get(purpose) + writes.get(purpose);
        }
        self.traffic.read_traffic(under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_opened_twice_has_one_pool() {
        let open = |credentials| RequestPool::for_store("s3://pool-test/", credentials);
        let first = open(None);
        assert!(Arc::ptr_eq(&first, &open(None)));
        assert!(!Arc::ptr_eq(&first, &open(Some("other"))));
    }
}
