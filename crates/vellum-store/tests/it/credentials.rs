//! Credentials that expire, or are replaced, while a store is in use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use bytes::Bytes;
use vellum_store::{ObjectCondition, ObjectStore, PlainObjects, ServiceStore, StoreAddress, UploadedFile};
use vellum_testkit::{LyingS3, S3Lie, S3Match};
use vellum_types::{ErrorKind, UnixTime};

use crate::services::{key, short_limits, test_credentials};

/// A file of credentials of this process, by name.
struct CredentialsFile {
    name: &'static str,
    path: PathBuf,
}

impl CredentialsFile {
    fn create(name: &'static str, access_key: &str) -> Self {
        test_credentials();
        let config = PathBuf::from(std::env::var_os("XDG_CONFIG_HOME").unwrap());
        let file = Self { name, path: config.join("vellum/credentials").join(name) };
        file.write(access_key);
        file
    }

    fn write(&self, access_key: &str) {
        fs::write(&self.path, format!("access-key-id = {access_key}\nsecret-access-key = s3cret\n")).unwrap();
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn open_store(&self, server: &LyingS3) -> ServiceStore {
        let StoreAddress::Service(address) = StoreAddress::parse(&server.store_url("store")).unwrap() else {
            panic!("no service")
        };
        ServiceStore::open(address, Some(self.name), &short_limits(), None).unwrap()
    }
}

/// All requests after the first few.
fn after(skip: u32) -> S3Match {
    S3Match { method: "ANY", key: String::new(), skip, times: u32::MAX }
}

#[test]
fn credentials_that_were_renewed_are_read_again() {
    let server = LyingS3::start().unwrap();
    let file = CredentialsFile::create("renewed", "OLD");
    let store = file.open_store(&server);
    let keys: Vec<_> = (0..9).map(|number| key(&format!("packs/{number}"))).collect();
    store.swap_ref(&key("refs/a"), None, Some(b"1")).unwrap();
    // In the middle of the work, and the user has renewed them in time.
    file.write("NEW");
    server.add_lie(after(3), S3Lie::RefuseKey("OLD", "ExpiredToken"));
    let _ = server.take_requests();
    keys.iter().for_each(|key| store.put_object(key, b"sealed").unwrap());
    assert_eq!(server.take_requests().len(), keys.len() + 1, "one was refused, and sent again");
    store.swap_ref(&key("refs/a"), Some(b"1"), Some(b"2")).unwrap();
    store.list_objects("packs").unwrap();

    // Keys that were replaced are refused in other words.
    file.write("NEWEST");
    server.tell_truth();
    server.add_lie(after(0), S3Lie::RefuseKey("NEW", "InvalidAccessKeyId"));
    store.swap_ref(&key("refs/a"), Some(b"2"), Some(b"3")).unwrap();
    assert_eq!(store.get_object(&key("refs/a"), 9).unwrap(), b"3");
    assert_eq!(store.repeat_count(), 0, "none of that waits");
}

#[test]
fn credentials_that_are_still_refused_are_named_at_once() {
    let server = LyingS3::start().unwrap();
    let file = CredentialsFile::create("expired", "OLD");
    let store = file.open_store(&server);
    store.put_object(&key("packs/a"), b"sealed").unwrap();
    server.add_lie(after(0), S3Lie::RefuseKey("OLD", "ExpiredToken"));
    let _ = server.take_requests();
    let errors = [
        store.get_object(&key("packs/a"), 9).unwrap_err(),
        store.put_object(&key("packs/b"), b"sealed").unwrap_err(),
        store.swap_ref(&key("refs/a"), None, Some(b"1")).unwrap_err(),
        store.list_objects("packs").unwrap_err(),
    ];
    assert_eq!(server.take_requests().len(), 2 * errors.len(), "each was sent twice");
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains("403: ExpiredToken"), "{text}");
        assert!(text.contains(&format!("renew the credentials in {}", file.path.display())), "{text}");
        assert!(!text.contains("s3cret") && !text.contains("OLD"), "{text}");
    }
    // Nothing has to be opened again.
    file.write("NEW");
    assert_eq!(store.get_object(&key("packs/a"), 9).unwrap(), b"sealed");

    fs::remove_file(&file.path).unwrap();
    server.tell_truth();
    server.add_lie(after(0), S3Lie::RefuseKey("NEW", "ExpiredToken"));
    let error = store.get_object(&key("packs/a"), 9).unwrap_err();
    assert!(error.to_string().contains(&*file.path.to_string_lossy()), "{error}");
}

#[test]
fn credentials_that_expire_during_an_upload_in_parts_are_read_again() {
    let server = LyingS3::start().unwrap();
    let file = CredentialsFile::create("long-upload", "OLD");
    let StoreAddress::Service(address) = StoreAddress::parse(&server.store_url("plain")).unwrap() else {
        panic!("no service")
    };
    let objects = PlainObjects::open(address, Some(file.name), &short_limits()).unwrap();
    let part = Bytes::from(vec![7; PlainObjects::part_len(0) as usize]);
    let mtime = UnixTime { secs: 1, nanos: 2 };
    let uploaded =
        UploadedFile { key: "big", size: 3 * part.len() as u64, mtime, expected: &ObjectCondition::Absent };
    let upload = objects.begin_upload(&uploaded).unwrap();
    upload.send_part(1, &part).unwrap();
    file.write("NEW");
    server.add_lie(after(0), S3Lie::RefuseKey("OLD", "ExpiredToken"));
    upload.send_part(2, &part).unwrap();
    file.write("NEWEST");
    server.add_lie(after(0), S3Lie::RefuseKey("NEW", "ExpiredToken"));
    upload.send_part(3, &part).unwrap();
    upload.finish().unwrap();
    assert_eq!(server.read_object("plain/big").unwrap().len(), 3 * part.len());

    // Those of a run that ends are read again, too, to give the upload up.
    let upload = objects.begin_upload(&UploadedFile { key: "other", ..uploaded }).unwrap();
    upload.send_part(1, &part).unwrap();
    drop(upload);
    assert_eq!(server.count_unfinished_uploads(), 0);
}
