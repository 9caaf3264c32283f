//! The hydrations under way, for those who look at the figures of a mount.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vellum_host::{MetricsExposition, ProgressMeter};

/// The progress of each hydration under way.
#[derive(Debug, Default)]
pub(crate) struct ActiveHydrations {
    // Weak, since a hydration has ended when its meter is gone.
    meters: Mutex<Vec<Weak<ProgressMeter>>>,
}

impl ActiveHydrations {
    /// Counts a hydration for as long as its meter is held.
    pub fn add_meter(&self, meter: &Arc<ProgressMeter>) {
        let mut meters = self.meters.lock();
        meters.retain(|meter| meter.strong_count() > 0);
        meters.push(Arc::downgrade(meter));
    }

    /// Writes how many bytes they have fetched, and are going to fetch.
    pub fn expose_metrics(&self, out: &mut MetricsExposition) {
        let progress = self
            .meters
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .map(|meter| meter.read_progress())
            .fold((0, 0), |(fetched, wanted), progress| {
                (fetched + progress.bytes, wanted + progress.total_bytes)
            });
        out.write_gauge("vellum_hydration_fetched_bytes", "", progress.0);
        out.write_gauge("vellum_hydration_wanted_bytes", "", progress.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hydrations_under_way_are_counted() {
        let active = ActiveHydrations::default();
        let format = || {
            let mut out = MetricsExposition::default();
            active.expose_metrics(&mut out);
            out.into_text()
        };
        let meters = [30, 12].map(|wanted| {
            let meter = Arc::new(ProgressMeter::default());
            active.add_meter(&meter);
            meter.begin_phase(0, wanted);
            meter.add_progress(0, wanted / 3);
            meter
        });
        assert!(format().contains("vellum_hydration_fetched_bytes 14\n"), "{}", format());
        assert!(format().contains("vellum_hydration_wanted_bytes 42\n"), "{}", format());
        drop(meters);
        assert!(format().contains("vellum_hydration_wanted_bytes 0\n"), "{}", format());
    }
}
