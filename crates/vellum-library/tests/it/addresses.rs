//! Volumes by the addresses of their stores.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vellum_crypto::SlotSecret;
use vellum_host::ProgressMeter;
use vellum_library::{Result, SnapshotId, Tree, Volume, VolumeAddress, VolumeOptions};
use vellum_store::StoreLocation;
use vellum_testkit::WebServer;
use vellum_types::ErrorKind;
use vellum_volume::remote::publish_listing;
use vellum_volume::{StateDir, key_epochs, keyring};

/// A volume whose store is elsewhere, with a snapshot that has the tag `v1`.
struct Elsewhere {
    dir: TempDir,
    store: String,
    code: String,
    first: SnapshotId,
}

impl Elsewhere {
    fn new(plain: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("store");
        let store = Some(place.to_str().unwrap().to_owned());
        let options = VolumeOptions { store, plain, ..VolumeOptions::default() };
        let created = Volume::create_with(dir.path().join("photos"), &options).unwrap();
        let work = created.volume.create_worktree("work", None).unwrap();
        work.write("a", "first").unwrap();
        let first = work.create_snapshot_with_tags("one", &["v1"]).unwrap();
        work.flush().unwrap();
        let code = created.recovery_code.unwrap_or_default();
        Self { store: format!("file://{}", place.display()), code, first, dir }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn own_volume(&self) -> vellum_volume::Volume {
        let state = StateDir::find_enclosing(&self.dir.path().join("photos")).unwrap();
        vellum_volume::Volume::open(&state).unwrap()
    }

    fn open_with(&self, secret: &str) -> Result<Volume> {
        let state = self.state();
        let address = VolumeAddress::new(&self.store, secret.as_bytes());
        Volume::open_by_address(&VolumeAddress { state: Some(&state), ..address })
    }

    fn open(&self) -> Volume {
        self.open_with(&self.code).unwrap()
    }
}

fn kind_of(opened: Result<Volume>) -> ErrorKind {
    match opened {
        Ok(_) => panic!("it must fail"),
        Err(error) => error.kind(),
    }
}

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn a_volume_is_opened_by_its_address_and_whatever_opens_it() {
    let elsewhere = Elsewhere::new(false);
    let owner = elsewhere.own_volume();
    keyring::add_key_slot(&owner, SlotSecret::Passphrase(b"open sesame"), "mine").unwrap();
    keyring::add_key_slot(&owner, SlotSecret::KeyFile(b"\x00\xff key"), "file").unwrap();
    for secret in [elsewhere.code.as_bytes(), b"open sesame", b"\x00\xff key"] {
        let state = elsewhere.state();
        let address = VolumeAddress::new(&elsewhere.store, secret);
        let volume = Volume::open_by_address(&VolumeAddress { state: Some(&state), ..address }).unwrap();
        assert_eq!(volume.open_snapshot("v1").unwrap().read("a").unwrap(), b"first");
        assert_eq!(volume.list_snapshots().unwrap().len(), 1);
    }
}

#[test]
fn what_cannot_be_opened_says_why_and_leaves_nothing() {
    let elsewhere = Elsewhere::new(false);
    assert_eq!(kind_of(elsewhere.open_with("wrong")), ErrorKind::Denied);
    let state = elsewhere.state();
    let open = |store: &str, secret: Option<&[u8]>, plain| {
        let state = Some(state.as_path());
        kind_of(Volume::open_by_address(&VolumeAddress { store, credentials: None, secret, plain, state }))
    };
    assert_eq!(open(&elsewhere.store, None, false), ErrorKind::Denied);
    assert_eq!(open(&elsewhere.store, None, true), ErrorKind::Usage);
    let empty = elsewhere.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(open(empty.to_str().unwrap(), Some(b"x"), false), ErrorKind::NotFound);
    assert_eq!(open("file:///nowhere/at/all", Some(b"x"), false), ErrorKind::NotFound);
    assert_eq!(open("ftp://host/path", Some(b"x"), false), ErrorKind::Unsupported);
    assert_eq!(open("s3://name:secret@bucket/path", Some(b"x"), false), ErrorKind::Usage);
    assert!(!state.exists());
}

#[test]
fn a_plain_volume_is_opened_only_if_one_is_wanted() {
    let elsewhere = Elsewhere::new(true);
    assert_eq!(kind_of(elsewhere.open_with("secret")), ErrorKind::Usage);
    let state = elsewhere.state();
    let address = VolumeAddress::new_plain(&elsewhere.store);
    let volume = Volume::open_by_address(&VolumeAddress { state: Some(&state), ..address }).unwrap();
    assert_eq!(volume.open_snapshot("work").unwrap().id(), elsewhere.first);
}

#[test]
fn a_live_worktree_is_written_and_its_changes_stay_on_this_machine() {
    let elsewhere = Elsewhere::new(false);
    let volume = elsewhere.open();
    let work = volume.create_worktree("by-address", Some("v1")).unwrap();
    work.write("b", "second").unwrap();
    let made = work.create_snapshot("two").unwrap();
    work.flush().unwrap();
    volume.tag_snapshot("v2", made).unwrap();
    work.write("b", "third").unwrap();
    work.sync().unwrap();
    drop((work, volume));
    let again = elsewhere.open();
    assert_eq!(again.open_worktree("by-address").unwrap().read("b").unwrap(), b"third");
    assert_eq!(elsewhere.own_volume().resolve_snapshot("v2").unwrap().id, made);
}

#[test]
fn no_key_is_written_also_after_the_key_was_changed() {
    let elsewhere = Elsewhere::new(false);
    drop(elsewhere.open());
    let owner = elsewhere.own_volume();
    key_epochs::rotate_key(&owner, &ProgressMeter::default()).unwrap();
    owner.add_tag("after", elsewhere.first).unwrap();
    let volume = elsewhere.open();
    // Sealed with the new key, which only the slot of the secret gives.
    assert_eq!(volume.open_snapshot("after").unwrap().id(), elsewhere.first);
    let files = files_below(&elsewhere.state());
    let is_key = |path: &PathBuf| {
        matches!(
            path.file_name().unwrap().to_str().unwrap(),
            "key" | "key-epochs" | "slot-key" | "key-epochs.pending"
        )
    };
    assert!(!files.is_empty() && !files.iter().any(is_key), "{files:?}");
}

#[test]
fn a_store_that_was_rolled_back_is_noticed() {
    let elsewhere = Elsewhere::new(false);
    let owner = elsewhere.own_volume();
    let refs = elsewhere.dir.path().join("store/refs");
    let before: Vec<_> =
        files_below(&refs).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let work = Volume::open(elsewhere.dir.path().join("photos")).unwrap().open_worktree("work").unwrap();
    work.write("a", "second").unwrap();
    work.create_snapshot("two").unwrap();
    work.flush().unwrap();
    drop((work, owner));
    elsewhere.open().resolve_snapshot("work").unwrap();
    for (path, bytes) in before {
        fs::remove_file(&path).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let seen = elsewhere.open().resolve_snapshot("work").map_err(|error| error.kind());
    assert_eq!(seen, Err(ErrorKind::Corrupt));
}

#[test]
fn a_store_behind_a_web_server_is_read_and_not_written() {
    let elsewhere = Elsewhere::new(false);
    let place = elsewhere.dir.path().join("store");
    publish_listing(&StoreLocation::new(place.to_str().unwrap())).unwrap();
    let server = WebServer::start(elsewhere.dir.path());
    let state = elsewhere.state();
    let store = server.store_url("store");
    let address = VolumeAddress::new(&store, elsewhere.code.as_bytes());
    let volume = Volume::open_by_address(&VolumeAddress { state: Some(&state), ..address }).unwrap();
    assert_eq!(volume.open_snapshot("v1").unwrap().read("a").unwrap(), b"first");
    assert!(volume.tag_snapshot("v2", elsewhere.first).is_err());
    let nothing = server.store_url("nothing");
    let address = VolumeAddress { store: &nothing, state: Some(&state), ..address };
    assert_eq!(kind_of(Volume::open_by_address(&address)), ErrorKind::NotFound);
}
