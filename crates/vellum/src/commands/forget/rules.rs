//! The rules of retention as they are typed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::tz::TimeZone;
use vellum_volume::retention::{PeriodRule, RetentionPeriod, RetentionPolicy};

use crate::ui::format;

/// What to keep.
#[derive(Debug, clap::Args)]
#[group(id = "rules", multiple = true)]
pub struct RetentionArgs {
    /// Keep the newest N snapshots
    #[arg(long, value_name = "N", help_heading = "Rules", value_parser = parse_count())]
    keep_last: Option<u32>,
    /// Keep the newest snapshot of each of the last N hours that have one
    #[arg(long, value_name = "N", help_heading = "Rules", value_parser = parse_count())]
    keep_hourly: Option<u32>,
    /// Keep the newest snapshot of each of the last N days that have one
    #[arg(long, value_name = "N", help_heading = "Rules", value_parser = parse_count())]
    keep_daily: Option<u32>,
    /// Keep the newest snapshot of each of the last N weeks (from Monday) that have one
    #[arg(long, value_name = "N", help_heading = "Rules", value_parser = parse_count())]
    keep_weekly: Option<u32>,
    /// Keep the newest snapshot of each of the last N months that have one
    #[arg(long, value_name = "N", help_heading = "Rules", value_parser = parse_count())]
    keep_monthly: Option<u32>,
    /// Keep the newest snapshot of each of the last N years that have one
    #[arg(long, value_name = "N", help_heading = "Rules", value_parser = parse_count())]
    keep_yearly: Option<u32>,
    /// Keep all snapshots made within this time before the newest one, as in 14d
    #[arg(long, value_name = "TIME", help_heading = "Rules", value_parser = format::parse_duration)]
    keep_within: Option<Duration>,
    /// Keep the newest snapshot of each hour within this time before the newest one
    #[arg(long, value_name = "TIME", help_heading = "Rules", value_parser = format::parse_duration)]
    keep_within_hourly: Option<Duration>,
    /// Keep the newest snapshot of each day within this time
    #[arg(long, value_name = "TIME", help_heading = "Rules", value_parser = format::parse_duration)]
    keep_within_daily: Option<Duration>,
    /// Keep the newest snapshot of each week within this time
    #[arg(long, value_name = "TIME", help_heading = "Rules", value_parser = format::parse_duration)]
    keep_within_weekly: Option<Duration>,
    /// Keep the newest snapshot of each month within this time
    #[arg(long, value_name = "TIME", help_heading = "Rules", value_parser = format::parse_duration)]
    keep_within_monthly: Option<Duration>,
    /// Keep the newest snapshot of each year within this time
    #[arg(long, value_name = "TIME", help_heading = "Rules", value_parser = format::parse_duration)]
    keep_within_yearly: Option<Duration>,
    /// Keep snapshots with this tag; useful with --ignore-tags
    #[arg(long, value_name = "TAG", help_heading = "Rules")]
    keep_tag: Vec<String>,
}

fn parse_count() -> clap::builder::RangedI64ValueParser<u32> {
    // A rule that keeps nothing is a mistake: who wants none leaves it out.
    clap::value_parser!(u32).range(1..)
}

impl RetentionArgs {
    /// Whether any was typed.
    pub fn is_empty(&self) -> bool {
        self.to_policy(TimeZone::UTC).is_empty()
    }

    /// Returns the policy that they make.
    pub fn to_policy(&self, zone: TimeZone) -> RetentionPolicy {
        let rule = |count: Option<u32>, within| PeriodRule { count: count.unwrap_or(0), within };
        let periods = BTreeMap::from([
            (RetentionPeriod::Hour, rule(self.keep_hourly, self.keep_within_hourly)),
            (RetentionPeriod::Day, rule(self.keep_daily, self.keep_within_daily)),
            (RetentionPeriod::Week, rule(self.keep_weekly, self.keep_within_weekly)),
            (RetentionPeriod::Month, rule(self.keep_monthly, self.keep_within_monthly)),
            (RetentionPeriod::Year, rule(self.keep_yearly, self.keep_within_yearly)),
        ]);
        RetentionPolicy {
            last: self.keep_last.unwrap_or(0),
            within: self.keep_within,
            periods,
            tags: self.keep_tag.iter().cloned().collect(),
            zone,
        }
    }
}

/// Reads the name of a time zone, as `Europe/Berlin` or `UTC`.
pub fn parse_zone(typed: &str) -> Result<TimeZone, String> {
    TimeZone::get(typed).map_err(|error| format!("{error}; a zone is named like UTC or Europe/Berlin"))
}
