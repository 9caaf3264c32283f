//! Numbers, sizes, times and paths as people read them. Sizes in binary units, times local.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use vellum_types::{FileKind, UnixTime};

const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Bytes: "512 B", "12.3 KiB", "1.0 GiB".
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Tenths, rounded; a value that would read 1024.0 belongs to the next unit.
    let mut exponent = 0;
    loop {
        let unit = 1u128 << (10 * (exponent + 1));
        // Ten times the number of bytes may need more than 64 bits.
        let tenths = (u128::from(bytes) * 10 + unit / 2) / unit;
        match UNITS.get(exponent) {
            Some(name) if tenths < 10240 || exponent + 1 == UNITS.len() => {
                return format!("{}.{} {name}", tenths / 10, tenths % 10);
            }
            _ => exponent += 1,
        }
    }
}

/// A typed size: bytes, or a number with K, M, G, T, P or E in binary units, as [`format_size`] writes them (`1.5 GiB`) or short
/// (`1.5G`); with KB, MB and so on in decimal ones.
pub fn parse_size(typed: &str) -> Result<u64, String> {
    vellum_sync::rules::parse_size(typed)
        .ok_or_else(|| "a size is typed like 4096, 128K, 1.5M or 10GiB".into())
}

/// A typed duration: a number and a unit, as in `30d`. A year has 365 days.
pub fn parse_duration(typed: &str) -> Result<Duration, String> {
    vellum_volume::settings::parse_setting_duration(typed)
}

/// A number with separators: "1,234,567".
pub fn format_number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Digits of an id that are shown: enough to distinguish the snapshots of most volumes.
const SHORT: usize = 8;

/// The beginning of an id, where it is not known how much of it is unique.
pub fn shorten_id(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

/// A number with its noun, the plural by adding the usual ending: "1 file", "2 files", "3 directories".
pub fn format_count(how_many: u64, noun: &str) -> String {
    if how_many == 1 {
        return format!("1 {noun}");
    }
    let plural = match noun.strip_suffix('y') {
        // Behind a vowel the letter stays: "days", "keys".
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{noun}s"),
    };
    format!("{} {plural}", format_number(how_many))
}

fn to_timestamp(time: UnixTime) -> Option<Timestamp> {
    Timestamp::new(time.secs, i32::try_from(time.nanos).ok()?).ok()
}

/// Local time to the second: "2026-05-01 13:30:05".
pub fn format_local_time(time: UnixTime) -> String {
    format_with_pattern(time, "%Y-%m-%d %H:%M:%S")
}

/// Local time to the minute: "2026-05-01 13:30".
pub fn format_local_minute(time: UnixTime) -> String {
    format_with_pattern(time, "%Y-%m-%d %H:%M")
}

/// Local time to the nanosecond with its offset.
pub fn format_exact_time(time: UnixTime) -> String {
    format_with_pattern(time, "%Y-%m-%d %H:%M:%S.%9f %:z")
}

fn format_with_pattern(time: UnixTime, pattern: &str) -> String {
    match to_timestamp(time) {
        Some(moment) => moment.to_zoned(TimeZone::system()).strftime(pattern).to_string(),
        // Files may have times that no calendar expresses. GNU 'date -d' accepts this notation.
        None => format!("@{}", time.secs),
    }
}

/// How long ago: "just now", "5 minutes ago", "3 days ago".
pub fn format_age(time: UnixTime) -> String {
    // A stored time may be any number.
    let seconds = Zoned::now().timestamp().as_second().saturating_sub(time.secs);
    let (amount, unit) = match seconds {
        i64::MIN..=-60 => return "in the future".into(),
        // Clocks of machines differ: up to a minute in the future counts as now.
        -59..=9 => return "just now".into(),
        10..=59 => (seconds, "second"),
        60..=3599 => (seconds / 60, "minute"),
        3600..=86_399 => (seconds / 3600, "hour"),
        86_400..=2_591_999 => (seconds / 86_400, "day"),
        2_592_000..=31_535_999 => (seconds / 2_592_000, "month"),
        _ => (seconds / 31_536_000, "year"),
    };
    format!("{} ago", format_count(amount.unsigned_abs(), unit))
}

/// A span as it passes: "43 ms", "1.4 s", "12 s", "3:05 min", "1:02:03 h".
pub fn format_duration(time: std::time::Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..=9 if time.subsec_millis() == 0 => format!("{seconds} s"),
        1..=9 => format!("{:.1} s", time.as_secs_f64()),
        10..=59 => format!("{seconds} s"),
        60..=3599 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02} h", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

/// Kind and mode as `ls -l` writes them: "-rwsr-xr-x".
pub fn format_mode(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(kind.type_letter());
    // As with ls, a capital letter means that the bit is set without the execute bit.
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (shift, (bit, with, without)) in [6, 3, 0].into_iter().zip(special) {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & bit != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => with,
            (true, false) => without,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_durations_are_numbers_with_units() {
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("2y"), Ok(Duration::from_secs(2 * 365 * 86_400)));
        for wrong in ["", "d", "30", "-1d", "1x", "99999999999999999999w", "9999999999999999w", "1dd"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn typed_sizes_have_binary_units() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("3m"), Ok(3 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
        for wrong in ["", "G", "-1", "99999999999T", "1 2", "1 ", " 1", "1Gi", "1X"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_taken_as_they_are_printed() {
        for bytes in [0, 7, 1023, 1024, 1536, 10 << 20, 10 << 30, 3 << 40, 5 << 50, 2 << 60] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes), "{}", format_size(bytes));
            assert_eq!(parse_size(&format_size(bytes).replace(' ', "")), Ok(bytes), "{}", format_size(bytes));
        }
    }

    #[test]
    fn sizes_stay_below_1024_of_their_unit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1.0 MiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn numbers_are_grouped_and_nouns_agree() {
        assert_eq!(format_number(999), "999");
        assert_eq!(format_number(1_234_567), "1,234,567");
        assert_eq!(format_count(1, "directory"), "1 directory");
        assert_eq!(format_count(2, "directory"), "2 directories");
        assert_eq!(format_count(1000, "key"), "1,000 keys");
        assert_eq!(format_count(3, "day"), "3 days");
    }

    #[test]
    fn ages_read_as_people_say_them() {
        let ago = |seconds: i64| {
            format_age(UnixTime { secs: Zoned::now().timestamp().as_second() - seconds, nanos: 0 })
        };
        assert_eq!(ago(0), "just now");
        assert_eq!(ago(-3600), "in the future");
        assert_eq!(ago(3 * 86_400 + 60), "3 days ago");
        assert_eq!(ago(370 * 86_400), "1 year ago");
    }

    #[test]
    fn modes_read_as_ls_writes_them() {
        assert_eq!(format_mode(FileKind::Dir, 0o1777), "drwxrwxrwt");
        assert_eq!(format_mode(FileKind::File, 0o4644), "-rwSr--r--");
        assert_eq!(format_mode(FileKind::Symlink, 0o777), "lrwxrwxrwx");
    }

    #[test]
    fn spans_grow_coarser() {
        let of = |millis| format_duration(std::time::Duration::from_millis(millis));
        assert_eq!(of(430), "430 ms");
        assert_eq!(of(1430), "1.4 s");
        assert_eq!(of(12_900), "12 s");
        assert_eq!(of(185_000), "3:05 min");
        assert_eq!(of(3_723_000), "1:02:03 h");
    }
}
