//! Applying a function to many items in parallel.
//!
//! Invariant: results are in the order of their items.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use vellum_host::ProgressMeter;

use crate::error::{Result, SyncError};

/// Applies `work` to each item with that many threads. Fails if a stop is requested.
pub(super) fn map_in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    meter: &ProgressMeter,
    work: impl Fn(&T) -> R + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        while !meter.is_stopped() {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { break };
            let result = work(item);
            done.lock().push((place, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(run);
        }
        run();
    });
    let mut done = done.into_inner();
    if done.len() < items.len() {
        return Err(SyncError::Stopped);
    }
    done.sort_unstable_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_a_stop_is_told() -> Result<()> {
        let meter = ProgressMeter::default();
        let items: Vec<u32> = (0..1000).collect();
        let doubled = map_in_parallel(&items, 8, &meter, |item| item * 2)?;
        assert!(doubled.iter().zip(&items).all(|(double, item)| *double == item * 2));
        assert!(map_in_parallel(&[] as &[u32], 8, &meter, |item| *item)?.is_empty());
        let stopped = map_in_parallel(&items, 2, &meter, |item| {
            if *item == 10 {
                meter.request_stop();
            }
        });
        assert!(matches!(stopped, Err(SyncError::Stopped)));
        Ok(())
    }
}
