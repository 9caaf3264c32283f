//! Requests that a service received from this process, by kind and by purpose.
//!
//! Invariant: each request over the network counts once, repeated ones and each page of a listing included. What a cache
//! answered is no request.

use std::sync::atomic::{AtomicU64, Ordering};

use vellum_host::MetricsExposition;

use super::{PerPurpose, RequestPurpose};

/// Kinds of requests as services charge for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceRequestKind {
    /// Reads an object, or a range of it.
    Get,
    /// Writes an object or a part of one, and begins and completes uploads in parts.
    Put,
    /// Asks for the length and the tag of an object.
    Head,
    /// Reads one page of a listing.
    List,
    /// Deletes.
    Delete,
}

/// Requests of one purpose so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PurposeTraffic {
    /// Whole and ranged reads of objects.
    pub gets: u64,
    /// Writes, and requests that begin or complete uploads in parts.
    pub puts: u64,
    /// Questions for the length of an object.
    pub heads: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Requests, of those above, that repeated a failed one.
    pub retries: u64,
    /// Bytes of objects that were received and not used: of answers that failed half-way, before the range that was
    /// asked for, and of requests that another one overtook.
    pub discarded_bytes: u64,
}

/// Requests to one service so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceTraffic {
    /// By purpose.
    pub purposes: PerPurpose<PurposeTraffic>,
    /// Requests that are under way now, by purpose.
    pub under_way: PerPurpose<u32>,
    /// Second requests that were sent because the first took long.
    pub hedges: u64,
    /// Those of them whose answer came first.
    pub hedges_won: u64,
}

/// Counts the requests of one purpose.
#[derive(Default)]
struct PurposeMeter {
    gets: AtomicU64,
    puts: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    retries: AtomicU64,
    discarded_bytes: AtomicU64,
}

/// Counts the requests to one service.
#[derive(Default)]
pub(super) struct TrafficMeter {
    purposes: PerPurpose<PurposeMeter>,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
}

impl PurposeTraffic {
    /// Requests of all kinds.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        self.gets + self.puts + self.heads + self.lists + self.deletes
    }
}

impl PurposeMeter {
    fn read_counts(&self) -> PurposeTraffic {
        let read = |meter: &AtomicU64| meter.load(Ordering::Relaxed);
        PurposeTraffic {
            gets: read(&self.gets),
            puts: read(&self.puts),
            heads: read(&self.heads),
            lists: read(&self.lists),
            deletes: read(&self.deletes),
            retries: read(&self.retries),
            discarded_bytes: read(&self.discarded_bytes),
        }
    }
}

impl TrafficMeter {
    /// Counts a request that is sent.
    pub fn count_request(&self, purpose: RequestPurpose, kind: ServiceRequestKind) {
        let meter = self.purposes.get(purpose);
        let count = match kind {
            ServiceRequestKind::Get => &meter.gets,
            ServiceRequestKind::Put => &meter.puts,
            ServiceRequestKind::Head => &meter.heads,
            ServiceRequestKind::List => &meter.lists,
            ServiceRequestKind::Delete => &meter.deletes,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that a failed request is sent again.
    pub fn count_retry(&self, purpose: RequestPurpose) {
        self.purposes.get(purpose).retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were received in vain.
    pub fn count_discarded(&self, purpose: RequestPurpose, bytes: u64) {
        self.purposes.get(purpose).discarded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a second request for the same answer.
    pub fn count_hedge(&self) {
        self.hedges.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that the second request was answered first.
    pub fn count_won_hedge(&self) {
        self.hedges_won.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far, with the requests that are under way.
    pub fn read_traffic(&self, under_way: PerPurpose<u32>) -> ServiceTraffic {
        ServiceTraffic {
            under_way,
            purposes: self.purposes.map(PurposeMeter::read_counts),
            hedges: self.hedges.load(Ordering::Relaxed),
            hedges_won: self.hedges_won.load(Ordering::Relaxed),
        }
    }
}

impl ServiceTraffic {
    /// Writes the counts.
    pub fn expose_metrics(&self, out: &mut MetricsExposition) {
        for purpose in RequestPurpose::ALL {
            let counts = self.purposes.get(purpose);
            let kinds = [
                ("get", counts.gets),
                ("put", counts.puts),
                ("head", counts.heads),
                ("list", counts.lists),
                ("delete", counts.deletes),
            ];
            for (kind, count) in kinds {
                let labels = format!("purpose=\"{}\",request=\"{kind}\"", purpose.name());
                out.write_counter("vellum_service_requests_total", &labels, count);
            }
        }
        // A loop of its own for each metric, whose lines have to stand together.
        for purpose in RequestPurpose::ALL {
            let labels = format!("purpose=\"{}\"", purpose.name());
            let retries = self.purposes.get(purpose).retries;
            out.write_counter("vellum_service_retries_total", &labels, retries);
        }
        for purpose in RequestPurpose::ALL {
            let labels = format!("purpose=\"{}\"", purpose.name());
            let bytes = self.purposes.get(purpose).discarded_bytes;
            out.write_counter("vellum_service_discarded_bytes_total", &labels, bytes);
        }
        for purpose in RequestPurpose::ALL {
            let labels = format!("purpose=\"{}\"", purpose.name());
            let under_way = u64::from(*self.under_way.get(purpose));
            out.write_gauge("vellum_service_requests_under_way", &labels, under_way);
        }
        out.write_counter("vellum_service_hedges_total", "", self.hedges);
        out.write_counter("vellum_service_hedges_won_total", "", self.hedges_won);
    }
}
