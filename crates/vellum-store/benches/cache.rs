//! Reading what is in the cache on the local disk, beside reading the same file directly, in turns. `VELLUM_BENCH_DIR`
//! chooses the filesystem. In real time, since each access passes a thread of its own. Nothing comes from a disk: what is
//! measured is what the cache adds to a copy from the kernel's memory.
#![expect(clippy::unwrap_used, reason = "a bench may stop at the first surprise")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use vellum_benchkit::criterion::Criterion;
use vellum_benchkit::{
    BenchClock, RandomData, create_scratch_dir, measure_wall_time, random_bytes, record_figure,
    wall_time_criterion,
};
use vellum_store::{BlockStore, MemoryObjectStore, ObjectKey, ObjectStore, PackCache};
use vellum_types::PackId;

const PIECE: u32 = 256 << 10;
/// Pieces of the pack: it fits into the caches of no processor.
const PIECES: u32 = 256;
/// Reads of each kind that are compared.
const TURNS: usize = 2000;

fn main() {
    bench_reads(&mut wall_time_criterion());
}

/// A pack in a cache.
struct CachedPack {
    store: BlockStore,
    pack: PackId,
    /// Its file in the cache.
    file: File,
}

impl CachedPack {
    fn new(folder: &Path) -> Self {
        let cache = PackCache::new(folder);
        let store = BlockStore::new(Arc::new(MemoryObjectStore::new("memory")), Some(cache));
        let pack = PackId([7; 32]);
        let key = ObjectKey::new(format!("packs/07/{pack}")).unwrap();
        // What is written is kept.
        store.put_object(&key, &random_bytes(1, (PIECE * PIECES) as usize)).unwrap();
        Self { store, pack, file: File::open(find_file(folder, &pack)).unwrap() }
    }

    fn read_cached(&self, offset: u32, len: u32) {
        assert_eq!(self.store.read_local_range(&self.pack, offset, len).unwrap().len(), len as usize);
    }

    fn read_file(&self, offset: u32, len: u32) {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset.into()).unwrap();
        std::hint::black_box(bytes);
    }

    /// Reads pieces here and there in turns, and records how much longer the cache takes than the file, by the medians.
    fn compare_with_file(&self, name: &str, len: u32) {
        let mut numbers = RandomData(3);
        let mut cached = Vec::new();
        let mut direct = Vec::new();
        for _ in 0..TURNS {
            let offset = u32::try_from(numbers.next_below(PIECES.into())).unwrap() * PIECE;
            cached.push(measure_wall_time(&mut || self.read_cached(offset, len)));
            direct.push(measure_wall_time(&mut || self.read_file(offset, len)));
        }
        cached.sort();
        direct.sort();
        let cached = cached[TURNS / 2].as_secs_f64();
        let direct = direct[TURNS / 2].as_secs_f64();
        let id = format!("cache/read/{name}");
        record_figure(&id, "times as long as the file", cached / direct, "count");
        record_figure(&id, "nanoseconds more than the file", (cached - direct) * 1e9, "count");
    }
}

fn find_file(folder: &Path, pack: &PackId) -> PathBuf {
    folder.join("packs/07").join(pack.to_string())
}

fn bench_reads(criterion: &mut Criterion<BenchClock>) {
    let dir = create_scratch_dir();
    let held = CachedPack::new(&dir.path().join("cache"));
    let mut group = criterion.benchmark_group("cache/read");
    for (name, len) in [("piece", PIECE), ("4KiB", 4 << 10)] {
        let compared = Once::new();
        group.bench_function(name, |bencher| {
            compared.call_once(|| held.compare_with_file(name, len));
            let mut offset = 0;
            bencher.iter(|| {
                held.read_cached(offset, len);
                offset = (offset + PIECE) % (PIECE * PIECES);
            });
        });
    }
    group.finish();
}
