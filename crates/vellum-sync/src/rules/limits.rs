//! Limits of size and age: files beyond them are not transferred, and count as present.
//!
//! They apply to regular files only, and do not affect deletions.

use serde::{Deserialize, Serialize};

/// Which regular files are transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLimits {
    /// Smallest size, bytes.
    pub min_size: Option<u64>,
    /// Largest size, bytes.
    pub max_size: Option<u64>,
    /// Only files that were modified after this time, seconds since 1970.
    pub newer_than: Option<i64>,
}

impl FileLimits {
    /// Whether a regular file of this size and modification time, in seconds, is transferred.
    #[must_use]
    pub fn is_within_limits(&self, size: u64, mtime: i64) -> bool {
        self.min_size.is_none_or(|min| size >= min)
            && self.max_size.is_none_or(|max| size <= max)
            && self.newer_than.is_none_or(|moment| mtime > moment)
    }
}

/// Parses a size like rsync: `1.5m`, `10K`, `3GiB` or `3 GiB` (powers of 1024), `2kb` (of 1000), followed by an
/// optional `+1` or `-1`.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let (text, step) = match text {
        _ if text.ends_with("+1") => (text.strip_suffix("+1")?, 1),
        _ if text.ends_with("-1") => (text.strip_suffix("-1")?, -1),
        _ => (text, 0),
    };
    let digits = text.find(|char: char| !(char.is_ascii_digit() || char == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    // As sizes are printed.
    let unit = unit.strip_prefix(' ').filter(|unit| !unit.is_empty()).unwrap_or(unit);
    let base: u32 = match unit.to_ascii_lowercase().get(1..) {
        None | Some("" | "ib") => 1024,
        Some("b") => 1000,
        Some(_) => return None,
    };
    let power = match unit.bytes().next().map(|byte| byte.to_ascii_lowercase()) {
        None => 0,
        Some(b'b') if unit.len() == 1 => 0,
        Some(letter) => u32::try_from(b"kmgtpe".iter().position(|known| *known == letter)?).ok()? + 1,
    };
    let size = scale_number(number, u128::from(base).checked_pow(power)?)?;
    u64::try_from(size.checked_add_signed(step)?).ok()
}

/// A decimal number times `factor`, rounded down.
fn scale_number(number: &str, factor: u128) -> Option<u128> {
    /// Digits after the point that are used: more would not change any size.
    const FRACTION_DIGITS: usize = 9;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction.get(..FRACTION_DIGITS).unwrap_or(fraction);
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let below = parts.checked_mul(factor)? / 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    whole.checked_mul(factor)?.checked_add(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let sizes = [
            ("0", 0),
            ("10", 10),
            ("7b", 7),
            ("1k", 1024),
            ("1.5m", 3 << 19),
            ("2kb", 2000),
            ("3GiB", 3 << 30),
            ("1m-1", (1 << 20) - 1),
            (".5k+1", 513),
            ("10.0 GiB", 10 << 30),
            ("512 B", 512),
            ("1e", 1 << 60),
        ];
        for (text, size) in sizes {
            assert_eq!(parse_size(text), Some(size), "{text}");
        }
        for text in ["", "k", "1x", "1kbb", ".", "1..2", "99999999999999999999p", "0-1", "-1", "ü"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn limits_are_inclusive_for_sizes_and_exclusive_for_age() {
        let limits = FileLimits { min_size: Some(10), max_size: Some(20), newer_than: Some(100) };
        assert!(limits.is_within_limits(10, 101) && limits.is_within_limits(20, 101));
        assert!(
            !limits.is_within_limits(9, 101)
                && !limits.is_within_limits(21, 101)
                && !limits.is_within_limits(10, 100)
        );
    }
}
