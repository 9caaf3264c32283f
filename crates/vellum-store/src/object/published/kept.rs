//! The listings of a published store as a process of this user read them last: the next one asks only whether they changed.
//!
//! Invariant: what is kept is used with the version that the server gave it, and only if it has the hash that it was kept
//! with. It may be missing, damaged or removed at any moment: then the listing is read whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use vellum_host::private_dir::create_private_dir;

use super::listing::{ListedObjects, decode_listing};
use crate::object::ObjectVersion;
use crate::object::cache::CacheDisk;

/// The first line, with the version of the format.
const FIRST_LINE: &str = "vellum-kept-listing-1";
/// Longest listing that is kept, bytes: it does not count towards the limit of the cache.
const KEPT_MAX: usize = 16 << 20;

/// The folder of a cache, for listings.
pub(super) struct KeptListings {
    disk: Arc<CacheDisk>,
}

impl KeptListings {
    /// Keeps listings in the folder of a cache, which need not exist.
    pub fn in_folder(folder: &Path) -> Self {
        Self { disk: CacheDisk::for_folder(folder) }
    }

    /// The listing of this name and its version, if it is kept and right.
    pub fn load_listing(&self, name: &'static str) -> Option<(ObjectVersion, ListedObjects)> {
        let bytes = self.disk.run(move |folder| fs::read(folder.join(name))).ok()?;
        let (version, listing) = decode_kept(&bytes)?;
        Some((version, decode_listing(listing)?))
    }

    /// Keeps the listing of this name. Where that fails, later processes read it whole.
    pub fn keep_listing(&self, name: &'static str, version: &ObjectVersion, listing: &[u8]) {
        let Some(bytes) = encode_kept(version, listing) else { return };
        let kept = self.disk.run(move |folder| write_file(folder, name, &bytes));
        if let Err(error) = kept {
            tracing::debug!(%error, "the listing of a published store is not kept");
        }
    }
}

fn write_file(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    create_private_dir(folder)?;
    // Several processes may keep the listing at once. Each renames a file of its own.
    let random = getrandom::u64().map_err(io::Error::from)?;
    let temporary = folder.join(format!("{name}.{random:016x}.tmp"));
    let write = || {
        File::options().write(true).create_new(true).mode(0o600).open(&temporary)?.write_all(bytes)?;
        // Not synced: after a power cut, a file that is not whole has another hash.
        fs::rename(&temporary, folder.join(name))
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// What is kept of a listing; none if it is too long, or its version is nothing that fits in a line.
fn encode_kept(version: &ObjectVersion, listing: &[u8]) -> Option<Vec<u8>> {
    let version = match version {
        ObjectVersion::Tag(tag) if tag.contains('\n') => return None,
        ObjectVersion::Tag(tag) => format!("tag {tag}\n"),
        ObjectVersion::Modified(time) => {
            let since = time.duration_since(UNIX_EPOCH).ok()?;
            format!("modified {} {}\n", since.as_secs(), since.subsec_nanos())
        }
    };
    if listing.len() > KEPT_MAX {
        return None;
    }
    let rest = [version.as_bytes(), listing].concat();
    let hash = blake3::hash(&rest).to_hex();
    Some([format!("{FIRST_LINE}\n{hash}\n").as_bytes(), &rest].concat())
}

/// The version and the bytes of a listing that was kept.
fn decode_kept(bytes: &[u8]) -> Option<(ObjectVersion, &[u8])> {
    let rest = bytes.strip_prefix(FIRST_LINE.as_bytes())?.strip_prefix(b"\n")?;
    let (hash, rest) = split_line(rest)?;
    if blake3::hash(rest).to_hex().as_bytes() != hash {
        return None;
    }
    let (version, listing) = split_line(rest)?;
    let version = std::str::from_utf8(version).ok()?;
    let version = match version.split_once(' ')? {
        ("tag", tag) => ObjectVersion::Tag(tag.to_owned()),
        ("modified", time) => {
            let (secs, nanos) = time.split_once(' ')?;
            let since = Duration::from_secs(secs.parse().ok()?)
                .checked_add(Duration::from_nanos(nanos.parse().ok()?))?;
            ObjectVersion::Modified(UNIX_EPOCH.checked_add(since)?)
        }
        (_, _) => return None,
    };
    Some((version, listing))
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

/// Reads any bytes as a kept listing, also with the hash that they would have to have.
pub(super) fn fuzz_kept_decoder(bytes: &[u8]) {
    let _ = decode_kept(bytes);
    let hash = blake3::hash(bytes).to_hex();
    let _ = decode_kept(&[format!("{FIRST_LINE}\n{hash}\n").as_bytes(), bytes].concat());
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_nothing_else() {
        let listing: &[u8] = b"vellum-listing-1\nend 0\n";
        let time = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        for version in [ObjectVersion::Tag("W/\"a b\"".to_owned()), ObjectVersion::Modified(time)] {
            let kept = encode_kept(&version, listing).unwrap();
            assert_eq!(decode_kept(&kept), Some((version, listing)));
            for position in 0..kept.len() {
                let mut damaged = kept.clone();
                damaged[position] ^= 1;
                assert_eq!(decode_kept(&damaged), None, "{position}");
                assert_eq!(decode_kept(&kept[..position]), None, "{position}");
            }
        }
        assert_eq!(encode_kept(&ObjectVersion::Tag("\n".to_owned()), listing), None);
        let long = vec![0; KEPT_MAX + 1];
        assert_eq!(encode_kept(&ObjectVersion::Tag("a".to_owned()), &long), None);
    }
}
