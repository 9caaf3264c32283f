//! Extended headers as POSIX.1-2001 (pax) describes them: records "length key=value\n".

use vellum_types::UnixTime;

/// The records of one entry.
#[derive(Default)]
pub struct PaxRecords {
    records: Vec<u8>,
    binary: bool,
}

impl PaxRecords {
    /// Adds a record whose value may be any bytes.
    pub fn add_record(&mut self, key: &[u8], value: &[u8]) {
        // The length counts its own digits: more digits make it longer, at most once.
        let rest = key.len() + value.len() + 3;
        let mut len = rest + count_digits(rest);
        if count_digits(len) > count_digits(rest) {
            len = rest + count_digits(len);
        }
        self.records.extend_from_slice(format!("{len} ").as_bytes());
        self.records.extend_from_slice(key);
        self.records.push(b'=');
        self.records.extend_from_slice(value);
        self.records.push(b'\n');
    }

    /// Adds a name. One that is not UTF-8 needs a record before it that states this.
    pub fn add_name(&mut self, key: &[u8], name: &[u8]) {
        if !self.binary && std::str::from_utf8(name).is_err() {
            self.binary = true;
            self.add_record(b"hdrcharset", b"BINARY");
        }
        self.add_record(key, name);
    }

    /// All records.
    pub fn into_bytes(self) -> Vec<u8> {
        self.records
    }
}

fn count_digits(number: usize) -> usize {
    number.to_string().len()
}

/// Seconds with nine decimals; before 1970 with a minus in front.
pub fn format_pax_time(time: UnixTime) -> String {
    let nanos = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    format!("{sign}{}.{:09}", size / 1_000_000_000, size % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for value in [0, 1, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 985, 990, 995] {
            let mut pax = PaxRecords::default();
            pax.add_record(b"key", &vec![b'v'; value]);
            let bytes = pax.into_bytes();
            let text = String::from_utf8_lossy(&bytes);
            let said = text.split(' ').next().and_then(|len| len.parse::<usize>().ok());
            assert_eq!(said, Some(bytes.len()), "{value}");
        }
    }

    #[test]
    fn times_before_1970_have_one_sign() {
        assert_eq!(format_pax_time(UnixTime { secs: 1, nanos: 5 }), "1.000000005");
        assert_eq!(format_pax_time(UnixTime { secs: -2, nanos: 500_000_000 }), "-1.500000000");
        assert_eq!(format_pax_time(UnixTime { secs: -1, nanos: 500_000_000 }), "-0.500000000");
    }
}
