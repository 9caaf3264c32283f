//! Metrics of a live worktree: always counted, exported as text.

use vellum_host::MetricsExposition;
use vellum_host::clock::current_time;

use crate::fs::LiveFilesystem;
use crate::tree::cache::CacheStatistics;

impl LiveFilesystem {
    /// Tells all figures.
    pub fn expose_metrics(&self, out: &mut MetricsExposition) {
        let log = self.write_log().usage();
        out.write_gauge("vellum_log_used_bytes", "", log.used);
        out.write_gauge("vellum_log_limit_bytes", "", log.limit);
        out.write_gauge("vellum_log_waiting_writers", "", log.waiting);
        out.write_counter("vellum_log_waits_total", "", log.waits);
        // A figure that cannot be read is left out. The others may show the reason.
        if let Ok(since) = self.publisher().unpublished_since() {
            let age = since.map_or(0, |since| current_time().secs.saturating_sub(since.secs));
            out.write_gauge("vellum_unpublished_age_seconds", "", u64::try_from(age).unwrap_or_default());
        }
        if let Ok(used) = self.trash().used_amount() {
            out.write_gauge("vellum_trash_entries", "", u64::try_from(used.inodes).unwrap_or_default());
            out.write_gauge("vellum_trash_bytes", "", u64::try_from(used.bytes).unwrap_or_default());
        }
        out.write_histogram("vellum_publish_seconds", "", &self.publisher().publish_durations());
        out.write_gauge("vellum_live_memory_bytes", "", self.live_map().live_store().memory_size() as u64);
        if let Some(times) = self.live_map().live_store().store_times() {
            out.write_histogram(
                "vellum_live_transaction_seconds",
                "",
                &times.transactions.read_distribution(),
            );
            out.write_histogram("vellum_live_sync_seconds", "", &times.syncs.read_distribution());
        }
        out.write_counter("vellum_live_retries_total", "", self.live_map().retry_count());
        self.content().hydrations().expose_metrics(out);
        let inodes = self.live_map().inode_cache().statistics();
        let chunks = self.content().source().chunk_statistics();
        expose_caches(out, &[("inode", inodes), ("chunk", chunks)]);
    }
}

/// One name after the other, each for all caches: that is how the format wants them.
fn expose_caches(out: &mut MetricsExposition, all: &[(&str, CacheStatistics)]) {
    let label = |name: &str| format!("cache=\"{name}\"");
    for (name, cache) in all {
        out.write_counter("vellum_cache_hits_total", &label(name), cache.hits);
    }
    for (name, cache) in all {
        out.write_counter("vellum_cache_misses_total", &label(name), cache.misses);
    }
    for (name, cache) in all {
        out.write_gauge("vellum_cache_bytes", &label(name), cache.bytes);
    }
    for (name, cache) in all {
        out.write_gauge("vellum_cache_capacity_bytes", &label(name), cache.capacity);
    }
}
