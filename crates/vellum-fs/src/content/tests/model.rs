//! Random operations on three files at once, compared with vectors.

use crate::StateReader;
use proptest::collection::vec;
use proptest::prelude::*;
use vellum_types::Ino;

use super::world::{CHUNKED, NEW, SMALL, World, check, chunked, content, make, pattern, small};
use crate::{AllocateMode, LiveFilesystem, SeekTarget};

const FILES: [Ino; 3] = [NEW, CHUNKED, SMALL];

#[derive(Debug, Clone)]
enum Op {
    Write { file: usize, at: u64, len: usize, seed: u64 },
    Append { file: usize, len: usize, seed: u64 },
    Truncate { file: usize, size: u64 },
    Punch { file: usize, at: u64, len: u64 },
    Zero { file: usize, at: u64, len: u64, keep_size: bool },
    Extend { file: usize, at: u64, len: u64 },
    Copy { from: usize, to: usize, source: u64, target: u64, len: u64 },
    Read { file: usize, at: u64, len: usize },
    Seek { file: usize, at: u64 },
    Reopen,
}

/// Offsets and lengths around the bounds that matter: inline, chunks, the end.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![0..300u64, 3500..4500u64, 2900..9100u64, 0..40_000u64]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 1..5000u64, Just(4096), 1..20_000u64]
}

fn ops() -> impl Strategy<Value = Op> {
    let file = 0..FILES.len();
    let sizes = prop_oneof![Just(0), offsets()];
    let len = || lengths().prop_map(|len| len as usize);
    prop_oneof![
        6 => (file.clone(), offsets(), len(), 0..200u64)
            .prop_map(|(file, at, len, seed)| Op::Write { file, at, len, seed }),
        2 => (file.clone(), len(), 0..200u64).prop_map(|(file, len, seed)| Op::Append { file, len, seed }),
        2 => (file.clone(), sizes).prop_map(|(file, size)| Op::Truncate { file, size }),
        1 => (file.clone(), offsets(), lengths()).prop_map(|(file, at, len)| Op::Punch { file, at, len }),
        1 => (file.clone(), offsets(), lengths(), any::<bool>())
            .prop_map(|(file, at, len, keep_size)| Op::Zero { file, at, len, keep_size }),
        1 => (file.clone(), offsets(), lengths()).prop_map(|(file, at, len)| Op::Extend { file, at, len }),
        3 => (file.clone(), file.clone(), offsets(), offsets(), lengths())
            .prop_map(|(from, to, source, target, len)| Op::Copy { from, to, source, target, len }),
        3 => (file.clone(), offsets(), len()).prop_map(|(file, at, len)| Op::Read { file, at, len }),
        2 => (file, offsets()).prop_map(|(file, at)| Op::Seek { file, at }),
        1 => Just(Op::Reopen),
    ]
}

fn overwrite(model: &mut Vec<u8>, at: usize, data: &[u8]) {
    if !data.is_empty() {
        model.resize(model.len().max(at + data.len()), 0);
        model[at..at + data.len()].copy_from_slice(data);
    }
}

fn zero(model: &mut [u8], at: u64, len: u64) {
    let end = ((at + len) as usize).min(model.len());
    if let Some(range) = model.get_mut(at as usize..end) {
        range.fill(0);
    }
}

fn fallocate(fs: &LiveFilesystem, ino: Ino, mode: AllocateMode, (at, len): (u64, u64)) -> bool {
    let done = fs.content().fallocate(ino, mode, at, len);
    assert_eq!(done.is_ok(), len > 0, "{done:?}");
    len > 0
}

fn copy(fs: &LiveFilesystem, models: &mut [Vec<u8>], op: &Op) {
    let Op::Copy { from, to, source, target, len } = *op else { return };
    let have = (models[from].len() as u64).saturating_sub(source).min(len);
    if from == to && source.abs_diff(target) < have {
        assert!(fs.content().copy_range(FILES[from], source, FILES[to], target, len).is_err());
        return;
    }
    let mut done = 0;
    while done < have {
        let copied = fs
            .content()
            .copy_range(FILES[from], source + done, FILES[to], target + done, have - done)
            .unwrap();
        assert!(copied > 0 && copied <= have - done);
        done += copied;
    }
    if from != to {
        assert_eq!(
            fs.content().copy_range(FILES[from], source + done, FILES[to], target, len - done).unwrap(),
            0
        );
    }
    let bytes = models[from][(source as usize).min(models[from].len())..][..have as usize].to_vec();
    overwrite(&mut models[to], target as usize, &bytes);
}

/// What is a hole reads as zeros, and data and holes alternate up to the end.
fn seek(fs: &LiveFilesystem, ino: Ino, model: &[u8], at: u64) {
    if at >= model.len() as u64 {
        assert!(
            fs.seek_data_or_hole(ino, at, SeekTarget::Data).is_err()
                && fs.seek_data_or_hole(ino, at, SeekTarget::Hole).is_err()
        );
        return;
    }
    let data = fs.seek_data_or_hole(ino, at, SeekTarget::Data).unwrap_or(model.len() as u64);
    assert!(model[at as usize..data as usize].iter().all(|byte| *byte == 0));
    let hole = fs.seek_data_or_hole(ino, at, SeekTarget::Hole).unwrap();
    if data > at {
        assert_eq!(hole, at);
    } else {
        assert!(hole > at && hole <= model.len() as u64);
        assert!(
            hole == model.len() as u64
                || fs.seek_data_or_hole(ino, hole, SeekTarget::Data).map_or(true, |data| data > hole)
        );
    }
}

fn apply(fs: &LiveFilesystem, models: &mut [Vec<u8>], op: &Op) {
    match *op {
        Op::Write { file, at, len, seed } => {
            let data = pattern(len, seed);
            assert_eq!(fs.content().write(FILES[file], at, &data, false).unwrap(), len);
            overwrite(&mut models[file], at as usize, &data);
        }
        Op::Append { file, len, seed } => {
            let data = pattern(len, seed);
            assert_eq!(fs.content().append_to_file(FILES[file], &data, false).unwrap(), len);
            models[file].extend(data);
        }
        Op::Truncate { file, size } => {
            fs.content().truncate(FILES[file], size).unwrap();
            models[file].resize(size as usize, 0);
        }
        Op::Punch { file, at, len } => {
            let mode = AllocateMode { punch_hole: true, keep_size: true, ..AllocateMode::default() };
            if fallocate(fs, FILES[file], mode, (at, len)) {
                zero(&mut models[file], at, len);
            }
        }
        Op::Zero { file, at, len, keep_size } => {
            let mode = AllocateMode { zero_range: true, keep_size, ..AllocateMode::default() };
            if fallocate(fs, FILES[file], mode, (at, len)) {
                zero(&mut models[file], at, len);
                let size = if keep_size { 0 } else { (at + len) as usize };
                let size = models[file].len().max(size);
                models[file].resize(size, 0);
            }
        }
        Op::Extend { file, at, len } => {
            if fallocate(fs, FILES[file], AllocateMode::default(), (at, len)) {
                let size = models[file].len().max((at + len) as usize);
                models[file].resize(size, 0);
            }
        }
        Op::Copy { .. } => copy(fs, models, op),
        Op::Read { file, at, len } => {
            let start = (at as usize).min(models[file].len());
            let end = (start + len).min(models[file].len());
            assert_eq!(fs.read(FILES[file], at, len).unwrap(), models[file][start..end]);
        }
        Op::Seek { file, at } => seek(fs, FILES[file], &models[file], at),
        Op::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn files_hold_what_was_written(ops in vec(ops(), 1..60)) {
        let world = World::new();
        let mut fs = world.open();
        make(&fs, NEW);
        let mut models = [Vec::new(), chunked(), small()];
        for op in &ops {
            if let Op::Reopen = op {
                drop(fs);
                fs = world.open();
            }
            apply(&fs, &mut models, op);
            FILES.iter().for_each(|ino| check(&fs, *ino));
        }
        for (ino, model) in FILES.iter().zip(&models) {
            prop_assert_eq!(&content(&fs, *ino), model);
        }
    }
}
