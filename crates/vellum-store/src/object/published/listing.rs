//! The published listing of a store: what it holds, for readers whom the server tells nothing of that kind.
//!
//! Invariant: keys are those of objects, in ascending order and each once, and the last line says how many there are: a
//! listing that was cut off, or a page that is no listing, is never taken for one. It is not sealed and not authenticated,
//! as the listing of a service is not: whoever answers requests can leave out objects and give old refs, which are sealed, and
//! nothing more.

use std::collections::BTreeMap;

use super::kept::fuzz_kept_decoder;
use crate::object::ObjectKey;

/// The first line, with the version.
const FIRST_LINE: &str = "vellum-listing-1";
/// How the last line begins.
// A listing that was cut off does not end so, with the number of its objects.
const LAST_WORD: &str = "end";

/// An object as a published listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishedObject {
    /// Its length in bytes.
    pub size: u64,
    /// Its bytes, if it is a ref.
    pub content: Option<Vec<u8>>,
}

/// All objects that were listed, by key.
pub(super) type ListedObjects = BTreeMap<ObjectKey, PublishedObject>;

/// The listing as it is stored.
pub(super) fn encode_listing(objects: &ListedObjects) -> Vec<u8> {
    let mut text = format!("{FIRST_LINE}\n");
    for (key, object) in objects {
        text.push_str(&format!("{} {key}", object.size));
        if let Some(content) = &object.content {
            text.push(' ');
            // A ref may have any bytes, and the listing is text.
            content.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        }
        text.push('\n');
    }
    text.push_str(&format!("{LAST_WORD} {}\n", objects.len()));
    text.into_bytes()
}

/// Reads a listing; none if these bytes are not one.
pub(super) fn decode_listing(bytes: &[u8]) -> Option<ListedObjects> {
    let text = std::str::from_utf8(bytes).ok()?;
    let lines = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.strip_suffix('\n')?;
    let (lines, last) = match lines.rsplit_once('\n') {
        Some((lines, last)) => (Some(lines), last),
        None => (None, lines),
    };
    let count = parse_decimal(last.strip_prefix(LAST_WORD)?.strip_prefix(' ')?)?;
    let mut objects = ListedObjects::new();
    for line in lines.into_iter().flat_map(|lines| lines.split('\n')) {
        let mut fields = line.split(' ');
        let size = parse_decimal(fields.next()?)?;
        let key = ObjectKey::new(fields.next()?).ok()?;
        let content = match fields.next() {
            Some(digits) => Some(parse_hexadecimal(digits)?),
            None => None,
        };
        // Sorted, so that no key comes twice, and one listing has one form.
        let is_out_of_order = objects.last_key_value().is_some_and(|(last, _)| *last >= key);
        let has_other_size = content.as_ref().is_some_and(|content| content.len() as u64 != size);
        if fields.next().is_some() || is_out_of_order || has_other_size {
            return None;
        }
        objects.insert(key, PublishedObject { size, content });
    }
    (objects.len() as u64 == count).then_some(objects)
}

/// A number without sign and leading zeros, so that one listing has one form.
fn parse_decimal(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn parse_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect::<Option<Vec<_>>>().filter(|_| rest.is_empty())
}

/// Reads any bytes as a listing.
///
/// # Panics
/// When a listing that is read has another form.
pub(crate) fn fuzz_listing_decoder(bytes: &[u8]) {
    fuzz_kept_decoder(bytes);
    if let Some(objects) = decode_listing(bytes) {
        assert_eq!(encode_listing(&objects), bytes, "one listing has one form");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ListedObjects {
        let entry = |key: &str, size, content| {
            (ObjectKey::from_trusted(key.to_owned()), PublishedObject { size, content })
        };
        ListedObjects::from([
            entry("config", 97, None),
            entry("index/00ff", 1234, None),
            entry("refs/tag/ab", 3, Some(vec![0, 0x7f, 0xff])),
        ])
    }

    #[test]
    fn version_1_has_these_bytes() {
        let golden = include_bytes!("../../../tests/golden/listing");
        assert_eq!(encode_listing(&sample()), golden);
        assert_eq!(decode_listing(golden), Some(sample()));
        assert_eq!(decode_listing(b"vellum-listing-1\nend 0\n"), Some(ListedObjects::new()));
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_no_listing() {
        let whole = encode_listing(&sample());
        for len in 0..whole.len() {
            assert_eq!(decode_listing(&whole[..len]), None, "{len} bytes");
        }
        let bad = [
            "1 ../../etc/passwd\nend 1",
            "1 b\n1 a\nend 2",
            "1 a\n1 a\nend 2",
            "01 a\nend 1",
            "+1 a\nend 1",
            "2 a ff\nend 1",
            "1 a fF\nend 1",
            "1 a f\nend 1",
            "1 a ff ff\nend 1",
            "1 a\nend 2",
            "\nend 0",
        ];
        for lines in bad {
            assert_eq!(decode_listing(format!("vellum-listing-1\n{lines}\n").as_bytes()), None, "{lines:?}");
        }
        assert_eq!(decode_listing(b"<!doctype html><title>Welcome</title>"), None);
    }
}
