//! What happened between two looks at a mount's figures.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

/// All figures of one moment.
pub struct MetricsSample {
    /// When.
    pub taken: Instant,
    /// By name and labels.
    pub samples: BTreeMap<String, f64>,
}

/// How often, and how long once took on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct OperationRate {
    /// A second.
    pub rate: f64,
    /// Milliseconds; 0 where nothing happened.
    pub latency_ms: f64,
}

/// Requests to a service, a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ServiceFigures {
    /// That a program or a user waited for.
    pub foreground: f64,
    /// For content that will probably be read.
    pub read_ahead: f64,
    /// Of publishing in the background.
    pub upload: f64,
    /// Of leases, and of looking for what others did.
    pub upkeep: f64,
    /// That are under way now: not a rate.
    pub under_way: u64,
    /// Those of them that repeated a failed one.
    pub retries: f64,
    /// Second requests for answers that were late.
    pub hedges: f64,
    /// Bytes that were received and not used.
    pub discarded: f64,
}

/// The cache of a store on the local disk, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct DiskCacheFigures {
    /// That it holds.
    pub bytes: u64,
    /// That it may hold.
    pub limit: u64,
    /// That are pinned.
    pub pinned: u64,
    /// Names and attributes, which are kept apart from content.
    pub nodes: NodeCacheFigures,
    /// Whether its disk does not answer.
    pub bypassed: bool,
}

/// The nodes in the cache on the local disk, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct NodeCacheFigures {
    /// That it holds.
    pub bytes: u64,
    /// That it may hold.
    pub limit: u64,
}

/// What a trash holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TrashHolding {
    /// Entries.
    pub entries: u64,
    /// Bytes of content of files.
    pub bytes: u64,
}

/// All hydrations under way, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct HydrationFigures {
    /// That were fetched.
    pub fetched: u64,
    /// That are to be fetched, those that were included.
    pub wanted: u64,
}

/// What happened, a second; and what there is.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct IntervalFigures {
    /// Seconds between the two looks.
    pub seconds: f64,
    /// Of one core, per cent.
    pub cpu_percent: f64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the write log.
    pub log: u64,
    /// Bytes of metadata in memory that are not published.
    pub buffer: u64,
    /// Requests of the kernel.
    pub fuse: OperationRate,
    /// Bytes read through the mount, a second.
    pub read: f64,
    /// Bytes written through it.
    pub written: f64,
    /// Transactions of metadata.
    pub transactions: OperationRate,
    /// Tries of transactions that had to be repeated, a second.
    pub retries: f64,
    /// Per cent of requests that the caches answered; null if there were none.
    pub cache_hits: Option<f64>,
    /// Bytes that the caches hold.
    pub cache: u64,
    /// Gets of objects.
    pub get: OperationRate,
    /// Puts of objects.
    pub put: OperationRate,
    /// Deletions of objects.
    pub delete: OperationRate,
    /// Bytes from and to the store, a second.
    pub received: f64,
    /// See there.
    pub sent: f64,
    /// Requests to a service, a second, and bytes that were received from it in vain; null where the store is not in one.
    pub service: Option<ServiceFigures>,
    /// For how many seconds something has been acknowledged and has not been in the store.
    pub unpublished_seconds: u64,
    /// The cache on the local disk; null where the store has none.
    pub disk_cache: Option<DiskCacheFigures>,
    /// Content that is being fetched; null if none is.
    pub hydration: Option<HydrationFigures>,
    /// What was deleted and is kept; null if nothing is.
    pub trash: Option<TrashHolding>,
    /// Requests by kind, the most frequent first.
    pub operations: Vec<(String, OperationRate)>,
}

/// Above the lines: groups, then columns.
pub const HEAD: [&str; 2] = [
    "-------process-------- ------------fuse------------ -----meta----- --cache--- -------------object-------------",
    " cpu%   mem   log  buf   ops   lat    read   write   txn  lat retr hit%  mem   get   lat   put   lat  del  lat",
];

const REQUESTS: &str = "vellum_fuse_request_seconds";

impl IntervalFigures {
    /// What happened in between.
    pub fn from_samples(before: &MetricsSample, now: &MetricsSample) -> Self {
        // Two readings in the same microsecond must not divide by zero.
        let seconds = now.taken.duration_since(before.taken).as_secs_f64().max(1e-6);
        let gauge = |name: &str| now.samples.get(name).copied().unwrap_or_default().max(0.0) as u64;
        let grown = |name: &str| {
            // What a mount does not report counts as 0, such as the traffic of a store in a directory.
            let at = |moment: &MetricsSample| moment.samples.get(name).copied().unwrap_or_default();
            // A counter that is lower than before belongs to a process that was started anew.
            (at(now) - at(before)).max(0.0)
        };
        let rate = |name: &str, labels: &str| {
            let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let count = grown(&format!("{name}_count{braced}"));
            let sum = grown(&format!("{name}_sum{braced}"));
            OperationRate {
                rate: count / seconds,
                latency_ms: if count > 0.0 { sum / count * 1e3 } else { 0.0 },
            }
        };
        let object = |kind: &str| rate("vellum_object_request_seconds", &format!("request=\"{kind}\""));
        let mut operations: Vec<_> = operation_kinds(now)
            .map(|kind| (kind.to_owned(), rate(REQUESTS, &format!("operation=\"{kind}\""))))
            .filter(|(_, rate)| rate.rate > 0.0)
            .collect();
        // The busiest comes first. Equal ones stand by name, so that lines do not change places with each interval.
        operations.sort_by(|a, b| b.1.rate.total_cmp(&a.1.rate).then_with(|| a.0.cmp(&b.0)));
        let hits = sum_cache_metric("hits_total", grown);
        let lookups = hits + sum_cache_metric("misses_total", grown);
        Self {
            seconds,
            cpu_percent: grown("process_cpu_seconds_total") / seconds * 100.0,
            memory: gauge("process_resident_memory_bytes"),
            log: gauge("vellum_log_used_bytes"),
            buffer: gauge("vellum_live_memory_bytes"),
            fuse: sum_rates(operations.iter().map(|(_, rate)| *rate)),
            read: grown("vellum_fuse_read_bytes_total") / seconds,
            written: grown("vellum_fuse_written_bytes_total") / seconds,
            transactions: rate("vellum_live_transaction_seconds", ""),
            retries: grown("vellum_live_retries_total") / seconds,
            cache_hits: (lookups > 0.0).then(|| hits / lookups * 100.0),
            cache: sum_cache_metric("bytes", |name| gauge(name) as f64) as u64,
            get: object("get"),
            put: object("put"),
            delete: object("delete"),
            received: grown("vellum_object_received_bytes_total") / seconds,
            sent: grown("vellum_object_sent_bytes_total") / seconds,
            service: ServiceFigures::from_growth(now, |name| grown(name) / seconds),
            unpublished_seconds: gauge("vellum_unpublished_age_seconds"),
            disk_cache: now.samples.contains_key("vellum_disk_cache_limit_bytes").then(|| DiskCacheFigures {
                bytes: gauge("vellum_disk_cache_bytes"),
                limit: gauge("vellum_disk_cache_limit_bytes"),
                pinned: gauge("vellum_disk_cache_pinned_bytes"),
                nodes: NodeCacheFigures {
                    bytes: gauge("vellum_disk_cache_node_bytes"),
                    limit: gauge("vellum_disk_cache_node_limit_bytes"),
                },
                bypassed: gauge("vellum_disk_cache_bypassed") > 0,
            }),
            hydration: Some(HydrationFigures {
                fetched: gauge("vellum_hydration_fetched_bytes"),
                wanted: gauge("vellum_hydration_wanted_bytes"),
            })
            .filter(|hydration| hydration.wanted > 0),
            trash: Some(TrashHolding {
                entries: gauge("vellum_trash_entries"),
                bytes: gauge("vellum_trash_bytes"),
            })
            .filter(|trash| trash.entries > 0),
            operations,
        }
    }

    /// One line below [`HEAD`].
    pub fn format_line(&self) -> String {
        let hits = self.cache_hits.map_or("-".into(), |hits| format!("{hits:.0}"));
        format!(
            "{:>5.1} {:>5} {:>5} {:>4} {:>5} {:>5} {:>7} {:>7} {:>5} {:>4} {:>4} {hits:>4} {:>4} {:>5} {:>5} {:>5} \
             {:>5} {:>4} {:>4}",
            self.cpu_percent,
            format_short_bytes(self.memory as f64),
            format_short_bytes(self.log as f64),
            format_short_bytes(self.buffer as f64),
            format_short_rate(self.fuse.rate),
            format_short_latency(self.fuse),
            format_short_bytes(self.read),
            format_short_bytes(self.written),
            format_short_rate(self.transactions.rate),
            format_short_latency(self.transactions),
            format_short_rate(self.retries),
            format_short_bytes(self.cache as f64),
            format_short_rate(self.get.rate),
            format_short_latency(self.get),
            format_short_rate(self.put.rate),
            format_short_latency(self.put),
            format_short_rate(self.delete.rate),
            format_short_latency(self.delete),
        )
    }
}

impl ServiceFigures {
    /// From the growth of counters a second; none if there are no such counters.
    fn from_growth(moment: &MetricsSample, rate: impl Fn(&str) -> f64) -> Option<Self> {
        // A mount whose store is no service reports none of these: the group is left out, and not shown as zeros.
        moment.samples.contains_key("vellum_service_hedges_total").then_some(())?;
        // A counter has one sample for each set of its labels.
        let sum = |prefix: &str| -> f64 {
            moment.samples.keys().filter(|name| name.starts_with(prefix)).map(|name| rate(name)).sum()
        };
        let is_under_way = |name: &str| name.starts_with("vellum_service_requests_under_way");
        let under_way: f64 =
            moment.samples.iter().filter(|(name, _)| is_under_way(name)).map(|(_, value)| value).sum();
        let requests = |purpose: &str| sum(&format!("vellum_service_requests_total{{purpose=\"{purpose}\""));
        Some(Self {
            foreground: requests("foreground"),
            read_ahead: requests("read-ahead"),
            upload: requests("upload"),
            upkeep: requests("upkeep"),
            under_way: under_way as u64,
            retries: sum("vellum_service_retries_total"),
            hedges: rate("vellum_service_hedges_total"),
            discarded: sum("vellum_service_discarded_bytes_total"),
        })
    }
}

/// The kinds of requests that there have been.
fn operation_kinds(moment: &MetricsSample) -> impl Iterator<Item = &str> {
    let prefix = "vellum_fuse_request_seconds_count{operation=\"";
    moment.samples.keys().filter_map(move |name| name.strip_prefix(prefix)?.strip_suffix("\"}"))
}

/// A figure of both caches.
fn sum_cache_metric(what: &str, figure: impl Fn(&str) -> f64) -> f64 {
    ["inode", "chunk"].iter().map(|cache| figure(&format!("vellum_cache_{what}{{cache=\"{cache}\"}}"))).sum()
}

fn sum_rates(rates: impl Iterator<Item = OperationRate>) -> OperationRate {
    let (rate, busy) =
        // An average over all requests: the latency of each kind counts as often as it had requests.
        rates.fold((0.0, 0.0), |(rate, busy), one| (rate + one.rate, busy + one.rate * one.latency_ms));
    OperationRate { rate, latency_ms: if rate > 0.0 { busy / rate } else { 0.0 } }
}

/// A rate in four characters: "0", "12", "3.4k".
pub fn format_short_rate(rate: f64) -> String {
    match rate {
        // The bounds are where rounding would otherwise give 1000, 10.0k and 1000k.
        _ if rate < 0.5 => "0".into(),
        _ if rate < 999.5 => format!("{rate:.0}"),
        _ if rate < 9950.0 => format!("{:.1}k", rate / 1e3),
        _ if rate < 999_500.0 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.1}M", rate / 1e6),
    }
}

/// Bytes in four characters: "0", "512", "12K", "3.4M".
pub fn format_short_bytes(bytes: f64) -> String {
    let mut rest = bytes;
    let mut units = ["", "K", "M", "G", "T", "P"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while rest >= 999.5 {
        let Some(next) = units.next() else { break };
        (rest, unit) = (rest / 1024.0, next);
    }
    if unit.is_empty() || rest >= 9.95 { format!("{rest:.0}{unit}") } else { format!("{rest:.1}{unit}") }
}

/// A time in five characters; nothing where nothing happened.
pub fn format_short_latency(rate: OperationRate) -> String {
    match rate.latency_ms {
        _ if rate.rate <= 0.0 => "-".into(),
        ms if ms < 0.9995 => format!("{:.0}u", ms * 1e3),
        ms if ms < 9.95 => format!("{ms:.1}m"),
        ms if ms < 999.5 => format!("{ms:.0}m"),
        ms => format!("{:.1}s", ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn moment(taken: Instant, samples: &[(&str, f64)]) -> MetricsSample {
        MetricsSample {
            taken,
            samples: samples.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn what_happened_in_between_is_told_a_second() {
        let start = Instant::now();
        let read = "vellum_fuse_request_seconds_count{operation=\"read\"}";
        let sum = "vellum_fuse_request_seconds_sum{operation=\"read\"}";
        let before = moment(start, &[(read, 100.0), (sum, 1.0), ("process_cpu_seconds_total", 3.0)]);
        let now = moment(
            start + Duration::from_secs(2),
            &[
                (read, 300.0),
                (sum, 1.4),
                ("process_cpu_seconds_total", 3.5),
                ("process_resident_memory_bytes", 3e6),
                ("vellum_cache_hits_total{cache=\"inode\"}", 9.0),
                ("vellum_cache_misses_total{cache=\"chunk\"}", 3.0),
            ],
        );
        let figures = IntervalFigures::from_samples(&before, &now);
        assert_eq!((figures.fuse.rate, figures.cpu_percent), (100.0, 25.0));
        assert!((figures.fuse.latency_ms - 2.0).abs() < 1e-9);
        assert_eq!(figures.cache_hits, Some(75.0));
        assert_eq!(figures.operations.len(), 1);
        assert_eq!(figures.format_line().chars().count(), HEAD[1].chars().count());
        assert!(figures.format_line().starts_with(" 25.0  2.9M"), "{}", figures.format_line());
    }

    #[test]
    fn requests_to_a_service_are_told_by_purpose() {
        let start = Instant::now();
        let get = "vellum_service_requests_total{purpose=\"upload\",request=\"get\"}";
        let put = "vellum_service_requests_total{purpose=\"upload\",request=\"put\"}";
        let hedges = "vellum_service_hedges_total";
        let wasted = "vellum_service_discarded_bytes_total{purpose=\"foreground\"}";
        let before = moment(start, &[(get, 5.0), (put, 1.0), (hedges, 0.0)]);
        let now = moment(
            start + Duration::from_secs(2),
            &[
                (get, 7.0),
                (put, 5.0),
                (hedges, 4.0),
                (wasted, 100.0),
                ("vellum_service_requests_under_way{purpose=\"upload\"}", 4.0),
                ("vellum_service_requests_under_way{purpose=\"upkeep\"}", 1.0),
                ("vellum_unpublished_age_seconds", 9.0),
                ("vellum_trash_entries", 2.0),
                ("vellum_trash_bytes", 300.0),
            ],
        );
        let figures = IntervalFigures::from_samples(&before, &now);
        let expected =
            ServiceFigures { upload: 3.0, under_way: 5, hedges: 2.0, discarded: 50.0, ..Default::default() };
        assert_eq!((figures.service, figures.unpublished_seconds), (Some(expected), 9));
        assert_eq!(figures.trash, Some(TrashHolding { entries: 2, bytes: 300 }));
        assert_eq!(IntervalFigures::from_samples(&before, &moment(start, &[])).service, None);
    }

    #[test]
    fn a_mount_that_began_anew_is_not_told_to_go_backwards() {
        let start = Instant::now();
        let name = "vellum_fuse_read_bytes_total";
        let before = moment(start, &[(name, 100.0)]);
        let now = moment(start + Duration::from_secs(1), &[(name, 1.0)]);
        assert_eq!(IntervalFigures::from_samples(&before, &now).read, 0.0);
    }

    #[test]
    fn figures_keep_to_their_columns() {
        assert_eq!(
            [0.2, 12.0, 3449.0, 34_490.0, 2e6].map(format_short_rate),
            ["0", "12", "3.4k", "34k", "2.0M"]
        );
        assert_eq!([0.0, 999.0, 1024.0, 5e8].map(format_short_bytes), ["0", "999", "1.0K", "477M"]);
        let of = |latency_ms| format_short_latency(OperationRate { rate: 1.0, latency_ms });
        assert_eq!([0.012, 1.25, 45.0, 2500.0].map(of), ["12u", "1.2m", "45m", "2.5s"]);
        assert_eq!(format_short_latency(OperationRate::default()), "-");
    }
}
