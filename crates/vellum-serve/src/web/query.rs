//! Decoding what stands in an address: percent signs, names, paths.
//!
//! Invariant: a path that passes has neither `.` nor `..` nor an empty name in it, no NUL, and at most [`PATH_MAX`] bytes.

use percent_encoding::percent_decode_str;

/// Most bytes of a path, as on Linux.
const PATH_MAX: usize = 4096;
/// Most bytes of a query.
const QUERY_MAX: usize = 16 << 10;

/// The decoded parameters of a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QueryFields {
    fields: Vec<(String, Vec<u8>)>,
}

/// What is wrong with an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAddress(pub String);

impl QueryFields {
    /// Decodes a query. Fails if a name comes twice or is none of `known`.
    pub fn parse(query: &str, known: &[&str]) -> Result<Self, BadAddress> {
        if query.len() > QUERY_MAX {
            return Err(BadAddress("the query is too long".into()));
        }
        let mut fields: Vec<(String, Vec<u8>)> = Vec::new();
        // Two '&' in a row, or one at the end, do no harm.
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A misspelt filter would otherwise show everything, as if all of it matched.
            if !known.contains(&name) {
                return Err(BadAddress(format!("'{}' is no parameter here", name.escape_default())));
            }
            // Which of the two counts would be anybody's guess.
            if fields.iter().any(|(given, _)| given == name) {
                return Err(BadAddress(format!("'{name}' is there twice")));
            }
            // Decoded once and after the split, so that an encoded '&' or '=' stays a part of its value. A '+' stays a '+'.
            fields.push((name.into(), percent_decode_str(value).collect()));
        }
        Ok(Self { fields })
    }

    /// The bytes of a parameter.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_slice())
    }

    /// A parameter that is text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, BadAddress> {
        let not_text = |_| BadAddress(format!("'{name}' is not UTF-8"));
        self.bytes(name).map(|value| std::str::from_utf8(value).map_err(not_text)).transpose()
    }

    /// A parameter that is a number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, BadAddress> {
        let no_number = |_| BadAddress(format!("'{name}' is no number"));
        self.text(name)?.map(|text| text.parse().map_err(no_number)).transpose()
    }

    /// A path, given as `name` or as hexadecimal bytes, `name_hex`. Both together must be the same path.
    pub fn path(&self, name: &str) -> Result<Option<Vec<u8>>, BadAddress> {
        let plain = self.bytes(name);
        let hex = self.bytes(&format!("{name}_hex"));
        let decoded = hex
            .map(|hex| std::str::from_utf8(hex).ok().and_then(decode_hex))
            .map(|decoded| decoded.ok_or_else(|| BadAddress(format!("'{name}_hex' is not hexadecimal"))))
            .transpose()?;
        let path = match (plain, decoded) {
            (None, None) => return Ok(None),
            (Some(plain), None) => plain.to_vec(),
            (None, Some(decoded)) => decoded,
            (Some(plain), Some(decoded)) if plain == decoded => decoded,
            (Some(_), Some(_)) => return Err(BadAddress(format!("'{name}' and '{name}_hex' differ"))),
        };
        // After decoding: '%2e%2e' is a harmless name before it, and leads out afterwards.
        check_path(&path)?;
        Ok(Some(path))
    }
}

/// Fails unless a path from the root is one that a tree could have.
pub fn check_path(path: &[u8]) -> Result<(), BadAddress> {
    if path.len() > PATH_MAX {
        return Err(BadAddress("the path is too long".into()));
    }
    if path.contains(&0) {
        return Err(BadAddress("no path contains NUL".into()));
    }
    // The empty path is the root.
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
    if !path.is_empty() && !path.split(|byte| *byte == b'/').all(is_name) {
        return Err(BadAddress("the path has to be relative to the root, without '.' and '..'".into()));
    }
    Ok(())
}

/// Bytes of hexadecimal digits; None if these are none.
#[must_use]
pub fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn path(query: &str) -> Result<Option<Vec<u8>>, BadAddress> {
        QueryFields::parse(query, &["path", "path_hex"]).and_then(|fields| fields.path("path"))
    }

    #[test]
    fn paths_stay_inside() {
        assert_eq!(path("path=a/b%20c").unwrap().unwrap(), b"a/b c");
        assert_eq!(path("path=").unwrap().unwrap(), b"");
        assert_eq!(path("path_hex=61ff").unwrap().unwrap(), b"a\xff");
        assert_eq!(path("path=a&path_hex=61").unwrap().unwrap(), b"a");
        assert_eq!(path("path=a%5Cb").unwrap().unwrap(), b"a\\b");
        for wrong in [
            "path=..",
            "path=a/../b",
            "path=%2e%2e",
            "path=%2e%2e%2fetc",
            "path=a/./b",
            "path=/a",
            "path=a//b",
            "path=a/",
            "path=a%00b",
            "path_hex=6",
            "path_hex=zz",
            "path=a&path_hex=62",
            "path=a&path=a",
            "other=a",
            "path_hex=2e2e",
            "path_hex=00",
            "PATH=a",
        ] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
        assert!(path(&format!("path={}", "a".repeat(PATH_MAX))).is_ok());
        assert!(path(&format!("path={}", "a".repeat(PATH_MAX + 1))).is_err());
    }
}
