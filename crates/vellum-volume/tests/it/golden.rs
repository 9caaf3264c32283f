//! Stored forms of released versions stay readable, and what is written today has the same bytes; no bytes make a
//! decoder panic.
//!
//! `VELLUM_BLESS=1` writes the files anew; only a new format version may do so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use vellum_chunker::ChunkSizes;
use vellum_crypto::slots::KeySlotId;
use vellum_crypto::{
    EpochKeys, ExchangeSecret, KdfParams, KeyEpoch, KeySlot, MasterKey, RecordDomain, RecoveryCode,
    SlotSecret, VolumeKeys,
};
use vellum_map::MapRoot;
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::{BlobId, FieldWriter, SnapshotId, UnixTime, VolumeId};
use vellum_volume::config::VolumeConfig;
use vellum_volume::device::DeviceRecord;
use vellum_volume::key_epochs::{
    EpochRecipient, EpochRecord, EpochSecret, KeyEpochs, KnownRecordHash, RotationEnd, SlotKeyRecord,
    decode_slot_public, encode_slot_public,
};
use vellum_volume::lease::{Lease, LeaseToken};
use vellum_volume::operations::OperationLink;
use vellum_volume::refs::{
    RefKind, RefStore, UnsnapshottedTree, WorktreeHead, WorktreeLog, WorktreeMark, WorktreeQuota,
    WorktreeTrash, parse_ref,
};
use vellum_volume::session::SessionObject;
use vellum_volume::{SnapshotOrigin, SnapshotRecord, SnapshotStatistics, keyring};
use zeroize::Zeroizing;

use crate::ram::Ram;
use crate::world::{PLAIN, World};

const VOLUME: VolumeId = VolumeId(*b"golden volume v1");
const MASTER: &[u8; 32] = b"golden master key of version one";
const PASSPHRASE: &[u8] = b"correct horse battery staple";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn blessing() -> bool {
    std::env::var_os("VELLUM_BLESS").is_some()
}

/// The bytes of a golden file; blessed, these ones.
fn kept(name: &str, now: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    if blessing() {
        fs::create_dir_all(golden("")).unwrap();
        fs::write(golden(name), now()).unwrap();
    }
    fs::read(golden(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn sealed() -> VolumeKeys {
    VolumeKeys::for_encrypted(&MasterKey::from_bytes(*MASTER), VOLUME)
}

fn plain() -> VolumeKeys {
    VolumeKeys::for_plain(VOLUME)
}

fn config(encrypted: bool) -> VolumeConfig {
    VolumeConfig { volume: VOLUME, encrypted, chunker: ChunkSizes::DEFAULT, level: 3 }
}

fn record() -> SnapshotRecord {
    SnapshotRecord {
        nonce: *b"sixteen bytes...",
        root: MapRoot(BlobId([0x11; 32])),
        parents: vec![SnapshotId([0x22; 32]), SnapshotId([0x33; 32])],
        counter: 300,
        time: UnixTime { secs: -2, nanos: 999_999_999 },
        worktree: "main".into(),
        author: "ann".into(),
        host: "box".into(),
        note: "a note\nof two lines".into(),
        origin: SnapshotOrigin::Safety,
        paths: vec![b"dir/\xff".to_vec(), b"".to_vec()],
        statistics: SnapshotStatistics {
            files: 1,
            dirs: 2,
            others: 3,
            bytes: 1 << 40,
            changed: 5,
            stored: 6,
        },
    }
}

fn head() -> WorktreeHead {
    WorktreeHead {
        head: Some(SnapshotId([0x44; 32])),
        created: UnixTime { secs: 1_700_000_000, nanos: 5 },
        host: "box".into(),
        place: "/home/ann".into(),
        live: Some(UnsnapshottedTree { root: MapRoot(BlobId([0x55; 32])), counted: record().statistics }),
        lease: Some(Lease {
            token: LeaseToken([0x66; 16]),
            session: session(),
            mountpoint: Some("/mnt/ann".into()),
            since: UnixTime { secs: 1_699_999_000, nanos: 7 },
            term: 60,
            ended: true,
        }),
        left: vec![(LeaseToken([0x77; 16]), MapRoot(BlobId([0x88; 32])))],
        reading: vec![MapRoot(BlobId([0x99; 32])), MapRoot(BlobId([0xaa; 32]))],
        quota: WorktreeQuota { bytes: Some(1 << 40), inodes: None },
        mark: None,
        trash: WorktreeTrash::default(),
        operation: None,
        log: None,
    }
}

fn session() -> SessionObject {
    SessionObject {
        host: "box".into(),
        scope: "boot pid:[1]".into(),
        pid: 4321,
        started: 987_654,
        renewed: UnixTime { secs: 1_700_000_000, nanos: 0 },
        reading: None,
        unpublished: None,
    }
}

fn reader_session() -> SessionObject {
    SessionObject { reading: Some(MapRoot(BlobId([0xbb; 32]))), ..session() }
}

fn unpublished_session() -> SessionObject {
    SessionObject { unpublished: Some("main".into()), ..session() }
}

#[test]
fn configs() {
    let bytes = kept("config.plain", || config(false).encode(&plain()));
    assert_eq!(config(false).encode(&plain()), bytes);
    assert_eq!(VolumeConfig::decode(&bytes), Ok(config(false)));
    config(false).authenticate(&bytes, &plain()).unwrap();
    let bytes = kept("config.sealed", || config(true).encode(&sealed()));
    assert_eq!(VolumeConfig::decode(&bytes), Ok(config(true)));
    config(true).authenticate(&bytes, &sealed()).unwrap();
    assert!(config(true).authenticate(&bytes, &plain()).is_err());
}

#[test]
fn snapshot_records() {
    let bytes = kept("snapshot.record", || record().encode());
    assert_eq!(record().encode(), bytes);
    assert_eq!(SnapshotRecord::decode(&bytes), Ok(record()));
    // Ids and objects: they hang on keys and associated data.
    let id = record().compute_id(&plain()).0;
    let object = kept("snapshot.plain", || {
        let mut sealed = Vec::new();
        plain().seal_record(RecordDomain::Snapshot, &id, &bytes, &mut sealed);
        [&id[..], &sealed].concat()
    });
    let (stored_id, stored) = object.split_at(32);
    assert_eq!(stored_id, id);
    let mut opened = Vec::new();
    plain().open_record(RecordDomain::Snapshot, &id, stored, &mut opened).unwrap();
    assert_eq!(opened, bytes);
}

fn open_refs(store: &Arc<Ram>, world: &World) -> RefStore {
    let state = world.empty_state();
    let epochs = KeyEpochs::for_plain(store.clone(), VOLUME, state.clone());
    RefStore::open(store.clone(), Arc::new(epochs), state).unwrap()
}

#[test]
fn refs() {
    let world = World::new(PLAIN);
    for (file, kind, value) in [
        ("ref.worktree-2", RefKind::Worktree, with_operation().encode()),
        ("ref.tag", RefKind::Tag, vec![0x55; 32]),
    ] {
        let ram = Arc::new(Ram::default());
        let refs = open_refs(&ram, &world);
        refs.update_ref(kind, "golden", |_| Ok(Some(value.clone()))).unwrap();
        let key = ram.keys("refs")[0].clone();
        let object = [key.as_str().as_bytes(), b"\n", &ram.bytes(&key)].concat();
        let kept = kept(file, || object.clone());
        assert_eq!(object, kept, "{file}");
        let at = kept.iter().position(|byte| *byte == b'\n').unwrap();
        let old = Arc::new(Ram::default());
        let key = ObjectKey::new(String::from_utf8(kept[..at].to_vec()).unwrap()).unwrap();
        old.put_object(&key, &kept[at + 1..]).unwrap();
        let refs = open_refs(&old, &world);
        let found = refs.get_ref(kind, "golden").unwrap().unwrap();
        assert_eq!((found.counter, found.value), (1, value));
    }
    assert_eq!(WorktreeHead::decode(&head().encode()), Ok(head()));
    let none = WorktreeHead { head: None, ..head() };
    assert_eq!(WorktreeHead::decode(&none.encode()), Ok(none));
    let marked = WorktreeHead { mark: Some(WorktreeMark([0xbb; 16])), ..with_operation() };
    let bytes = marked.encode();
    assert_eq!(WorktreeHead::decode(&bytes), Ok(marked));
    for len in 0..bytes.len() {
        assert!(WorktreeHead::decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
    }
    heads_of_the_first_version(&world);
    heads_with_logs();
}

/// They have another version, and are as long as they have to be.
fn heads_with_logs() {
    let log = WorktreeLog {
        url: "redis://10.0.0.4/1".into(),
        credentials: Some("redis".into()),
        key: [0xee; 16],
        incarnation: [0xff; 16],
        floor: 1 << 40,
    };
    let without = with_operation().encode();
    let unnamed = WorktreeLog { credentials: None, floor: 0, ..log.clone() };
    for log in [log, unnamed] {
        let head = WorktreeHead { log: Some(log), ..with_operation() };
        let bytes = head.encode();
        assert_eq!((without[0], bytes[0]), (2, 5));
        assert_eq!(bytes[1..without.len()], without[1..], "all else is as it is without a log");
        assert_eq!(WorktreeHead::decode(&bytes), Ok(head));
        for len in 0..bytes.len() {
            assert!(WorktreeHead::decode(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
    }
}

fn with_operation() -> WorktreeHead {
    WorktreeHead { operation: Some(OperationLink { sequence: 300, hash: [0xdd; 32] }), ..head() }
}

/// They have no version, no operation, and leave the mark and the trash out.
fn heads_of_the_first_version(world: &World) {
    // Those of old versions are not made anew.
    let read = |file: &str| fs::read(golden(file)).unwrap();
    let object = read("ref.worktree");
    let at = object.iter().position(|byte| *byte == b'\n').unwrap();
    let old = Arc::new(Ram::default());
    let key = ObjectKey::new(String::from_utf8(object[..at].to_vec()).unwrap()).unwrap();
    old.put_object(&key, &object[at + 1..]).unwrap();
    let value = open_refs(&old, world).get_ref(RefKind::Worktree, "golden").unwrap().unwrap().value;
    assert_eq!(WorktreeHead::decode(&value), Ok(head()));
    let marked = [value.clone(), vec![0xbb; 16]].concat();
    let mark = Some(WorktreeMark([0xbb; 16]));
    assert_eq!(WorktreeHead::decode(&marked), Ok(WorktreeHead { mark, ..head() }));
    assert!(WorktreeHead::decode(&marked[..marked.len() - 1]).is_err(), "half a mark");
    let tree = UnsnapshottedTree { root: MapRoot(BlobId([0xcc; 32])), counted: record().statistics };
    let trash = WorktreeTrash { days: 30, tree: Some(tree) };
    assert_eq!(WorktreeHead::decode(&read("worktree.trash")), Ok(WorktreeHead { trash, ..head() }));
    let off = [value, vec![0, 0, 0]].concat();
    assert!(WorktreeHead::decode(&off).is_err(), "a second form of a head without trash");
}

#[test]
fn sessions() {
    let bytes = kept("session", || session().encode());
    assert_eq!(session().encode(), bytes);
    assert_eq!(SessionObject::decode(&bytes), Ok(session()));
    let bytes = kept("session.reader", || reader_session().encode());
    assert_eq!(reader_session().encode(), bytes);
    assert_eq!(SessionObject::decode(&bytes), Ok(reader_session()));
    let bytes = kept("session.unpublished", || unpublished_session().encode());
    assert_eq!(unpublished_session().encode(), bytes);
    assert_eq!(SessionObject::decode(&bytes), Ok(unpublished_session()));
}

/// What docs/format.md says of wrapped keys and of what is sealed in an epoch, by hand.
fn epoch_aad(key: &str, record: &EpochRecord) -> Vec<u8> {
    let bytes = record.encode();
    // The seal has one byte of length below 128.
    let head = bytes.len() - record.seal.len() - if record.seal.len() < 128 { 1 } else { 2 };
    [key.as_bytes(), &[0], &bytes[..head]].concat()
}

#[test]
fn key_epochs() {
    let slot = KeySlotId(*b"a slot of golden");
    let exchange = ExchangeSecret::from_bytes(&Zeroizing::new([0x77; 32]));
    let second = MasterKey::from_bytes(*b"golden master key of version two");
    let first_epoch = KeyEpoch::from_number(1).unwrap();
    let epoch_keys = EpochKeys::derive(&second, VOLUME, first_epoch);
    let wrapping = [VOLUME.as_bytes(), &1_u32.to_le_bytes()[..], &slot.0].concat();
    let object = "key-epochs/00000001";
    let bytes = kept("key-epoch.record", || {
        let wrapped = exchange.public_key().wrap_master_key(&second, &wrapping).unwrap();
        let mut record = EpochRecord {
            volume: VOLUME,
            epoch: first_epoch,
            time: UnixTime { secs: 1_700_000_000, nanos: 5 },
            recipients: vec![EpochRecipient { slot, wrapped }],
            seal: Vec::new(),
        };
        let publics = vec![exchange.public_key()];
        let secret = EpochSecret { previous: MasterKey::from_bytes(*MASTER), publics };
        let aad = epoch_aad(object, &record);
        epoch_keys.seal_record(RecordDomain::Config, &aad, &secret.encode(), &mut record.seal);
        record.encode()
    });
    let record = EpochRecord::decode(&bytes).unwrap();
    assert_eq!(record.encode(), bytes);
    let given = exchange.unwrap_master_key(&record.recipients[0].wrapped, &wrapping).unwrap();
    assert_eq!(given.as_bytes(), second.as_bytes());
    let mut plain = Vec::new();
    epoch_keys
        .open_record(RecordDomain::Config, &epoch_aad(object, &record), &record.seal, &mut plain)
        .unwrap();
    let secret = EpochSecret::decode(&plain, 1).unwrap();
    assert_eq!((secret.previous.as_bytes(), secret.publics), (MASTER, vec![exchange.public_key()]));

    let end = RotationEnd {
        records: vec![KnownRecordHash {
            id: SnapshotId([0x22; 32]),
            hash: *blake3::hash(b"a record").as_bytes(),
        }],
    };
    let bytes = kept("key-epoch.end", || end.encode());
    assert_eq!((end.encode(), RotationEnd::decode(&bytes)), (bytes, Ok(end)));

    let object = format!("slot-keys/{slot}");
    let aad = |grant: &[u8]| [object.as_bytes(), &[0], grant].concat();
    let bytes = kept("slot-key", || {
        let mut seal = Vec::new();
        let public = encode_slot_public(&exchange.public_key());
        sealed().seal_record(RecordDomain::Config, &aad(b""), &public, &mut seal);
        SlotKeyRecord { grant: None, seal }.encode()
    });
    let record = SlotKeyRecord::decode(&bytes).unwrap();
    assert_eq!((record.encode(), &record.grant), (bytes, &None));
    let mut plain = Vec::new();
    sealed().open_record(RecordDomain::Config, &aad(b""), &record.seal, &mut plain).unwrap();
    assert_eq!(decode_slot_public(&plain), Ok(exchange.public_key()));
}

#[test]
fn key_slots() {
    let code = kept("slot.recovery.code", || RecoveryCode::generate().to_text().as_bytes().to_vec());
    let code = RecoveryCode::parse(std::str::from_utf8(&code).unwrap()).unwrap();
    let ram = Ram::default();
    let master = MasterKey::from_bytes(*MASTER);
    let make = |secret| {
        let master = MasterKey::from_bytes(*MASTER);
        let slot = KeySlot::create(secret, &master, VOLUME, "a label", KdfParams::DEFAULT).unwrap().slot;
        let key = format!("keys/{}", slot.id());
        let mut seal = Vec::new();
        sealed().seal_record(RecordDomain::Config, key.as_bytes(), &slot.encode(), &mut seal);
        let mut object = FieldWriter::new();
        object.write_bytes(&slot.encode()).write_bytes(&seal);
        [key.as_bytes(), b"\n", object.as_slice()].concat()
    };
    let recovery = kept("slot.recovery", || make(SlotSecret::Recovery(&code)));
    let passphrase = kept("slot.passphrase", || make(SlotSecret::Passphrase(PASSPHRASE)));
    for file in [recovery, passphrase] {
        let at = file.iter().position(|byte| *byte == b'\n').unwrap();
        let key = ObjectKey::new(String::from_utf8(file[..at].to_vec()).unwrap()).unwrap();
        ram.put_object(&key, &file[at + 1..]).unwrap();
        keyring::check_key_slot(&ram, &key, &sealed()).unwrap();
    }
    for given in [code.to_text().as_bytes(), PASSPHRASE] {
        assert_eq!(
            keyring::unlock_master_key(&ram, given, VOLUME).unwrap().master.as_bytes(),
            master.as_bytes()
        );
    }
    assert!(keyring::list_key_slots(&ram).unwrap().iter().all(|(_, slot)| slot.label() == "a label"));
}

#[test]
fn device_records() {
    let record = DeviceRecord { name: "laptop".into(), added: UnixTime { secs: 1_760_000_000, nanos: 5 } };
    let bytes = kept("device", || record.encode());
    assert_eq!(record.encode(), bytes);
    assert_eq!(DeviceRecord::decode(&bytes), Ok(record));
}

/// Bytes that are a good encoding with some of them changed, cut or added; or anything.
fn near(good: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = good.len();
    let changed = (
        prop::collection::vec((0..len, any::<u8>()), 0..4),
        0..=len,
        prop::collection::vec(any::<u8>(), 0..4),
    )
        .prop_map(move |(changes, cut, tail)| {
            let mut bytes = good.clone();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if cut % 3 == 0 {
                bytes.truncate(cut);
            }
            bytes.extend(tail);
            bytes
        });
    prop_oneof![4 => changed, 1 => prop::collection::vec(any::<u8>(), 0..100)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_config_panics(bytes in near(config(true).encode(&sealed()))) {
        if let Ok(decoded) = VolumeConfig::decode(&bytes) {
            let _ = decoded.authenticate(&bytes, &sealed());
        }
    }

    #[test]
    fn no_record_panics_and_what_decodes_has_one_encoding(bytes in near(record().encode())) {
        if let Ok(decoded) = SnapshotRecord::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn no_ref_panics(bytes in near([&b"\x01\x05\x04main"[..], &[9], &[7; 9]].concat())) {
        let _ = parse_ref(&bytes);
    }

    #[test]
    fn no_head_panics_and_what_decodes_has_one_encoding(bytes in near(head().encode())) {
        if let Ok(decoded) = WorktreeHead::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn no_session_panics_and_what_decodes_has_one_encoding(bytes in near(session().encode())) {
        if let Ok(decoded) = SessionObject::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn no_session_for_unpublished_content_panics(bytes in near(unpublished_session().encode())) {
        if let Ok(decoded) = SessionObject::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn no_session_of_a_reader_panics_and_what_decodes_has_one_encoding(bytes in near(reader_session().encode())) {
        if let Ok(decoded) = SessionObject::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn no_slot_panics(bytes in near(fs::read(golden("slot.recovery")).unwrap_or_else(|_| vec![0; 300]))) {
        let _ = keyring::split_slot_seal(&bytes);
        let ram = Ram::default();
        ram.put_object(&ObjectKey::new("keys/any").unwrap(), &bytes).unwrap();
        let _ = keyring::list_key_slots(&ram);
        let _ = keyring::unlock_master_key(&ram, b"not a recovery code", VOLUME);
    }
}
