//! Times of files in the metadata of objects, as rclone stores them.
//!
//! Invariant: every time of a file comes back to the nanosecond. A text that is no time is none.

use vellum_types::UnixTime;

use crate::object::address::ServiceKind;

/// Decimals of a second that count.
const DECIMALS: usize = 9;

/// The field of an object's own metadata that has the time.
pub(in crate::object) const MTIME_FIELD: &str = "mtime";

/// The time as other programs expect it in this service: seconds with decimals in S3, RFC 3339 elsewhere.
pub(in crate::object) fn encode_mtime(kind: ServiceKind, time: UnixTime) -> String {
    let timestamp = match kind {
        // WebDAV and web servers have no metadata of this kind.
        ServiceKind::S3
        | ServiceKind::WebDavs
        | ServiceKind::WebDav
        | ServiceKind::Https
        | ServiceKind::Http => None,
        ServiceKind::Gcs | ServiceKind::Azure => {
            let nanos = i32::try_from(time.nanos).unwrap_or_default();
            jiff::Timestamp::new(time.secs, nanos).ok()
        }
    };
    // What has no place in a calendar of four digits is a number of seconds everywhere.
    timestamp.map_or_else(|| encode_seconds(time), |timestamp| timestamp.to_string())
}

/// Either form.
pub(in crate::object) fn decode_mtime(text: &str) -> Option<UnixTime> {
    if let Some(time) = decode_seconds(text) {
        return Some(time);
    }
    let timestamp: jiff::Timestamp = text.parse().ok()?;
    split_nanos(timestamp.as_nanosecond())
}

/// Seconds since 1970 with as many decimals as are needed, and a sign before 1970.
fn encode_seconds(time: UnixTime) -> String {
    let total = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let sign = if total < 0 { "-" } else { "" };
    let whole = total.unsigned_abs() / 1_000_000_000;
    let decimals = format!("{:09}", total.unsigned_abs() % 1_000_000_000);
    match decimals.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        decimals => format!("{sign}{whole}.{decimals}"),
    }
}

fn decode_seconds(text: &str) -> Option<UnixTime> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // More than 18 digits of seconds may not fit into 64 bits.
    if whole.is_empty() || whole.len() > 18 || !is_number(whole) || !is_number(decimals) {
        return None;
    }
    let counted = decimals.get(..decimals.len().min(DECIMALS))?;
    let below: i128 = format!("{counted:0<DECIMALS$}").parse().ok()?;
    let total = whole.parse::<i128>().ok()? * 1_000_000_000 + below;
    split_nanos(if is_negative { -total } else { total })
}

fn split_nanos(total: i128) -> Option<UnixTime> {
    let secs = i64::try_from(total.div_euclid(1_000_000_000)).ok()?;
    let nanos = u32::try_from(total.rem_euclid(1_000_000_000)).ok()?;
    Some(UnixTime { secs, nanos })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_look_as_rclone_writes_them() {
        let shown = |secs, nanos| encode_mtime(ServiceKind::S3, UnixTime { secs, nanos });
        assert_eq!(shown(1_354_040_105, 123_456_789), "1354040105.123456789");
        assert_eq!(shown(1_354_040_105, 120_000_000), "1354040105.12");
        assert_eq!(shown(1_354_040_105, 0), "1354040105");
        assert_eq!(shown(-2, 500_000_000), "-1.5");
        assert_eq!(shown(-1, 500_000_000), "-0.5");
        let rfc = encode_mtime(ServiceKind::Azure, UnixTime { secs: 1_354_040_105, nanos: 120_000_000 });
        assert_eq!(rfc, "2012-11-27T18:15:05.12Z");
        assert_eq!(decode_mtime("2012-11-27T19:15:05.12+01:00"), decode_mtime("1354040105.12"));
        assert_eq!(decode_mtime("1.1234567899"), Some(UnixTime { secs: 1, nanos: 123_456_789 }));
        for text in ["", "-", ".5", "1.x", "1e9", "yesterday", "99999999999999999999", "1.5.5", " 1"] {
            assert_eq!(decode_mtime(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_time_comes_back(secs in -900_000_000_000_i64..900_000_000_000, nanos in 0_u32..1_000_000_000) {
            let time = UnixTime { secs, nanos };
            for kind in ServiceKind::ALL {
                prop_assert_eq!(decode_mtime(&encode_mtime(kind, time)), Some(time));
            }
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,40}") {
            let _ = decode_mtime(&text);
        }
    }
}
