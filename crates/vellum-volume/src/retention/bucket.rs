//! Calendar periods: which snapshots belong together.

use jiff::Timestamp;
use jiff::civil::ISOWeekDate;
use jiff::tz::TimeZone;
use vellum_types::UnixTime;

use super::RetentionPeriod;

/// One hour, day, week, month or year of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PeriodBucket {
    year: i16,
    /// Number of the day, week or month within the year; 0 for a year.
    part: i16,
    /// Hour of the day; 0 for anything longer.
    hour: i8,
    /// Seconds between UTC and local time, of an hour: the one that is repeated when summer time ends is two.
    offset: i32,
}

impl PeriodBucket {
    /// Returns the periods in which a moment lies, as [`RetentionPeriod::ALL`] orders them.
    pub(super) fn find_buckets(time: UnixTime, zone: &TimeZone) -> [Self; RetentionPeriod::ALL.len()] {
        // No calendar reaches further. What a record says beyond that belongs to the first or last second.
        let secs = time.secs.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let moment = Timestamp::from_second(secs).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone.clone());
        let week: ISOWeekDate = moment.date().iso_week_date();
        let year = moment.year();
        RetentionPeriod::ALL.map(|period| {
            let (year, part) = match period {
                RetentionPeriod::Hour | RetentionPeriod::Day => (year, moment.day_of_year()),
                // The first days of January may belong to the last week of the year before.
                RetentionPeriod::Week => (week.year(), i16::from(week.week())),
                RetentionPeriod::Month => (year, i16::from(moment.month())),
                RetentionPeriod::Year => (year, 0),
            };
            let (hour, offset) = match period {
                RetentionPeriod::Hour => (moment.hour(), moment.offset().seconds()),
                RetentionPeriod::Day
                | RetentionPeriod::Week
                | RetentionPeriod::Month
                | RetentionPeriod::Year => (0, 0),
            };
            Self { year, part, hour, offset }
        })
    }
}
