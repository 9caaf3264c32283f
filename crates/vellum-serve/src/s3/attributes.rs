//! What clients say of an object besides its content, as attributes of its file.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use s3s::{S3Result, s3_error};
use vellum_library::{File, Metadata};

use super::errors::tree_error;

/// Where other programs look for the type of a file, too.
const TYPE_XATTR: &str = "user.mime_type";
/// The extended attributes of this gateway.
const XATTRS: &str = "user.s3.";
/// What is added for metadata of clients' own.
const METADATA: &str = "meta.";
/// Most bytes of all of it: that of S3.
const BYTES_MAX: usize = 2048;
/// The metadata in which clients (rclone) have a file's own time, in seconds since 1970 with a fraction.
const MODIFIED: &str = "mtime";

/// What is said of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectAttributes {
    pub(super) content_type: Option<String>,
    pub(super) cache_control: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) content_language: Option<String>,
    /// Metadata of clients' own, without [`MODIFIED`].
    pub(super) metadata: HashMap<String, String>,
    pub(super) modified: Option<SystemTime>,
}

impl ObjectAttributes {
    /// Takes metadata of a request, and checks how much all of it is.
    pub(super) fn with_metadata(mut self, metadata: Option<HashMap<String, String>>) -> S3Result<Self> {
        self.metadata = metadata.unwrap_or_default();
        if let Some(time) = self.metadata.get(MODIFIED).and_then(|text| parse_time(text)) {
            self.modified = Some(time);
            self.metadata.remove(MODIFIED);
        }
        // How the content travelled, which is over.
        self.content_encoding = self.content_encoding.and_then(|coded| {
            let kept: Vec<_> =
                coded.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked").collect();
            Some(kept.join(",")).filter(|kept| !kept.is_empty())
        });
        let size: usize = self.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        let headers: usize =
            self.headers().into_iter().filter_map(|(_, value)| value.as_ref().map(String::len)).sum();
        if size.max(headers) > BYTES_MAX {
            return Err(s3_error!(MetadataTooLarge));
        }
        Ok(self)
    }

    fn headers(&self) -> [(&'static str, &Option<String>); 4] {
        [
            ("cache-control", &self.cache_control),
            ("content-disposition", &self.content_disposition),
            ("content-encoding", &self.content_encoding),
            ("content-language", &self.content_language),
        ]
    }

    /// Gives them to a file that has no name yet.
    pub(super) fn write(&self, file: &File) -> S3Result<()> {
        let set = |name: String, value: &String| file.set_xattr(name, value).map_err(tree_error);
        if let Some(content_type) = &self.content_type {
            set(TYPE_XATTR.to_owned(), content_type)?;
        }
        for (name, value) in self.headers() {
            value.as_ref().map_or(Ok(()), |value| set(format!("{XATTRS}{name}"), value))?;
        }
        for (name, value) in &self.metadata {
            set(format!("{XATTRS}{METADATA}{name}"), value)?;
        }
        self.modified.map_or(Ok(()), |time| file.set_modified(time).map_err(tree_error))
    }

    /// Reads those of a file.
    pub(super) fn read(file: &File, metadata: &Metadata) -> S3Result<Self> {
        let mut found = Self { modified: Some(metadata.modified()), ..Self::default() };
        for (name, value) in file.xattrs("user.").map_err(tree_error)? {
            // Others may have written what cannot stand in a header.
            let Ok(value) = String::from_utf8(value) else { continue };
            if value.chars().any(|c| c.is_control() || !c.is_ascii()) {
                continue;
            }
            let Ok(name) = str::from_utf8(&name) else { continue };
            match name.strip_prefix(XATTRS) {
                None if name == TYPE_XATTR => found.content_type = Some(value),
                None => {}
                Some("cache-control") => found.cache_control = Some(value),
                Some("content-disposition") => found.content_disposition = Some(value),
                Some("content-encoding") => found.content_encoding = Some(value),
                Some("content-language") => found.content_language = Some(value),
                Some(name) => found.add_metadata(name, value),
            }
        }
        Ok(found)
    }

    fn add_metadata(&mut self, name: &str, value: String) {
        let is_token =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if let Some(name) = name.strip_prefix(METADATA).filter(|name| !name.is_empty() && is_token(name)) {
            self.metadata.insert(name.to_owned(), value);
        }
    }

    /// The metadata of an answer, with the file's own time.
    pub(super) fn to_metadata(&self) -> HashMap<String, String> {
        let mut metadata = self.metadata.clone();
        if let Some(time) = self.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()) {
            metadata.insert(MODIFIED.to_owned(), format!("{}.{:09}", time.as_secs(), time.subsec_nanos()));
        }
        metadata
    }
}

/// A time since 1970, with at most 9 digits behind the point.
fn parse_time(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Beyond these there is no time that a file can have.
    if !is_number(seconds) || seconds.len() > 10 || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanoseconds = format!("{fraction:0<9}").parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds.parse().ok()?, nanoseconds))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_a_fraction() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("1700000000.5", Some((1_700_000_000, 500_000_000))),
            ("1700000000.000000001", Some((1_700_000_000, 1))),
            ("", None),
            ("-1", None),
            ("1.", None),
            (".5", None),
            ("1.0000000001", None),
            ("99999999999", None),
            ("1e9", None),
            ("NaN", None),
        ] {
            let expected =
                expected.map(|(seconds, nanoseconds)| UNIX_EPOCH + Duration::new(seconds, nanoseconds));
            assert_eq!(parse_time(text), expected, "{text}");
        }
    }

    #[test]
    fn metadata_is_bounded_and_a_time_in_it_is_the_file_s() {
        let pairs = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        let found =
            ObjectAttributes::default().with_metadata(pairs(&[("mtime", "5.25"), ("a", "b")])).unwrap();
        assert_eq!(found.modified, Some(UNIX_EPOCH + Duration::from_millis(5250)));
        assert_eq!(found.to_metadata().get("mtime").unwrap(), "5.250000000");
        // What is no time is metadata like any other.
        let found = ObjectAttributes::default().with_metadata(pairs(&[("mtime", "yesterday")])).unwrap();
        assert_eq!((found.modified, found.metadata.len()), (None, 1));
        assert!(
            ObjectAttributes::default()
                .with_metadata(pairs(&[("a", "b".repeat(BYTES_MAX).as_str())]))
                .is_err()
        );
        let coded = ObjectAttributes {
            content_encoding: Some("gzip, aws-chunked".into()),
            ..ObjectAttributes::default()
        };
        assert_eq!(coded.with_metadata(None).unwrap().content_encoding.unwrap(), "gzip");
    }
}
