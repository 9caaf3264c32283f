//! Checksums of content, which `s3s` reads from requests and does not compare.

use hyper::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto::Checksum;
use s3s::{S3Result, TrailingHeaders, s3_error};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A checksum that S3 knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChecksumKind {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

const KINDS: [ChecksumKind; 5] = [
    ChecksumKind::Crc32,
    ChecksumKind::Crc32c,
    ChecksumKind::Crc64Nvme,
    ChecksumKind::Sha1,
    ChecksumKind::Sha256,
];

/// What the content of a request has to have.
#[derive(Default)]
pub struct ExpectedChecksums {
    /// Those in the head.
    pub head: Checksum,
    /// `Content-MD5`.
    pub md5: Option<String>,
    /// The names of those that come behind the content: the value of `x-amz-trailer`.
    pub trailer: Option<String>,
    /// What comes behind the content.
    pub trailing_headers: Option<TrailingHeaders>,
}

/// Computes the checksums of content while it arrives.
pub struct ContentHasher {
    hasher: ChecksumHasher,
    md5: Option<Md5>,
}

impl ChecksumKind {
    fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    fn of(self, checksum: &Checksum) -> Option<&String> {
        match self {
            Self::Crc32 => checksum.checksum_crc32.as_ref(),
            Self::Crc32c => checksum.checksum_crc32c.as_ref(),
            Self::Crc64Nvme => checksum.checksum_crc64nvme.as_ref(),
            Self::Sha1 => checksum.checksum_sha1.as_ref(),
            Self::Sha256 => checksum.checksum_sha256.as_ref(),
        }
    }

    fn add_to(self, hasher: &mut ChecksumHasher) {
        match self {
            Self::Crc32 => hasher.crc32 = Some(Crc32::new()),
            Self::Crc32c => hasher.crc32c = Some(Crc32c::new()),
            Self::Crc64Nvme => hasher.crc64nvme = Some(Crc64Nvme::new()),
            Self::Sha1 => hasher.sha1 = Some(Sha1::new()),
            Self::Sha256 => hasher.sha256 = Some(Sha256::new()),
        }
    }
}

impl ExpectedChecksums {
    /// What has to be computed while the content arrives.
    #[must_use]
    pub fn start_hasher(&self) -> ContentHasher {
        let mut hasher = ChecksumHasher::default();
        for kind in KINDS {
            if kind.of(&self.head).is_some() || self.is_in_trailer(kind) {
                kind.add_to(&mut hasher);
            }
        }
        ContentHasher { hasher, md5: self.md5.as_ref().map(|_| Md5::new()) }
    }

    fn is_in_trailer(&self, kind: ChecksumKind) -> bool {
        let names = self.trailer.as_deref().unwrap_or_default();
        names.split(',').any(|name| name.trim().eq_ignore_ascii_case(kind.header()))
    }

    /// Fails unless the content has all of them. Returns those that were computed.
    pub fn compare(&self, hasher: ContentHasher) -> S3Result<Checksum> {
        if let (Some(md5), Some(expected)) = (hasher.md5, &self.md5)
            && STANDARD.encode(md5.finalize()) != *expected
        {
            return Err(s3_error!(BadDigest, "the content does not have the Content-MD5 of the request"));
        }
        let found = hasher.hasher.finalize();
        check_equal(&found, &self.head)?;
        let trailers = self.trailing_headers.as_ref().and_then(TrailingHeaders::take).unwrap_or_default();
        for kind in KINDS.into_iter().filter(|kind| self.is_in_trailer(*kind)) {
            if trailing_value(&trailers, kind) != kind.of(&found).map(String::as_str) {
                return Err(wrong_checksum(kind));
            }
        }
        Ok(found)
    }
}

impl ContentHasher {
    /// Whether anything is computed.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        let ChecksumHasher { crc32, crc32c, sha1, sha256, crc64nvme } = &self.hasher;
        let is_crc = crc32.is_some() || crc32c.is_some() || crc64nvme.is_some();
        is_crc || sha1.is_some() || sha256.is_some() || self.md5.is_some()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
    }
}

fn trailing_value(trailers: &HeaderMap, kind: ChecksumKind) -> Option<&str> {
    trailers.get(kind.header()).and_then(|value| value.to_str().ok()).map(str::trim)
}

fn wrong_checksum(kind: ChecksumKind) -> s3s::S3Error {
    s3_error!(BadDigest, "the content does not have the {} of the request", kind.header())
}

/// Fails unless whatever is expected was found.
pub(super) fn check_equal(found: &Checksum, expected: &Checksum) -> S3Result<()> {
    let wrong = KINDS.into_iter().find(|kind| {
        let expected = kind.of(expected);
        expected.is_some() && expected != kind.of(found)
    });
    wrong.map_or(Ok(()), |kind| Err(wrong_checksum(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(expected: &ExpectedChecksums, content: &[u8]) -> bool {
        let mut hasher = expected.start_hasher();
        hasher.update(content);
        expected.compare(hasher).is_ok()
    }

    #[test]
    fn content_has_to_have_each_checksum_that_was_given() {
        let mut hasher = ChecksumHasher::default();
        KINDS.into_iter().for_each(|kind| kind.add_to(&mut hasher));
        hasher.update(b"content");
        let right = ExpectedChecksums { head: hasher.finalize(), ..ExpectedChecksums::default() };
        assert!(KINDS.into_iter().all(|kind| kind.of(&right.head).is_some()));
        assert!(compare(&right, b"content"));
        assert!(!compare(&right, b"Content"));
        let md5 = ExpectedChecksums {
            md5: Some("mgNkuembtIDdJeHwKEyFVQ==".into()),
            ..ExpectedChecksums::default()
        };
        assert!(compare(&md5, b"content"));
        assert!(!compare(&md5, b""));
        assert!(compare(&ExpectedChecksums::default(), b"anything"));
    }

    #[test]
    fn a_checksum_that_was_to_follow_and_did_not_is_wrong() {
        let trailer = Some("x-amz-checksum-crc32".to_owned());
        let expected = ExpectedChecksums { trailer, ..ExpectedChecksums::default() };
        assert!(!compare(&expected, b"content"));
        assert!(expected.start_hasher().hasher.crc32.is_some());
    }
}
