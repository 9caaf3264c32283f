//! What is saved on real files, by the ending of their names: how much is not there twice, and how small the rest is.
//!
//! Each kind is looked at by itself: what two kinds share counts in both. Symlinks are not followed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use vellum_chunker::{ChunkSizes, Chunker};
use vellum_host::ProgressMeter;
use vellum_store::BlobWriter;
use vellum_types::BlobKind;

use super::{new_bench_keys, new_discarding_store};
use crate::error::{BenchError, Result, check_interrupted};

/// Longest ending that counts as a kind, bytes; longer ones are parts of names.
const ENDING_MAX: usize = 8;

/// Kinds of their own: those that hold most. The rest are one.
const KINDS_MAX: usize = 20;

/// What the rest are called, and files without an ending.
const OTHERS: &str = "(others)";
const NONE: &str = "(none)";

/// Bytes that are read at once.
const READ: usize = 4 << 20;

/// What is saved on one kind of file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FileKindSavings {
    /// The ending, with its dot.
    pub kind: String,
    /// How many there are.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that are not there twice.
    pub unique: u64,
    /// These, compressed.
    pub compressed: u64,
}

/// Looks at all files in some places. Returns the kinds, the largest first, and how many files could not be read.
pub fn measure_file_kinds(paths: &[PathBuf], meter: &ProgressMeter) -> Result<(Vec<FileKindSavings>, u64)> {
    let mut found = BTreeMap::new();
    let mut unread = 0;
    for path in paths {
        let metadata = path.symlink_metadata();
        // What was named has to be there. What cannot be read below it is only counted.
        metadata.map_err(BenchError::io_error("look at", path.display().to_string()))?;
        unread += collect_files_by_kind(path, &mut found, meter)?;
    }
    let mut order: Vec<_> = found.into_iter().collect();
    // Before the rest is split off: the kinds that hold most keep rows of their own.
    order.sort_by_key(|(_, files)| std::cmp::Reverse(files.iter().map(|(_, size)| size).sum::<u64>()));
    let rest = order.split_off(order.len().min(KINDS_MAX));
    if !rest.is_empty() {
        order.push((OTHERS.into(), rest.into_iter().flat_map(|(_, files)| files).collect()));
    }
    let mut kinds = Vec::with_capacity(order.len());
    for (kind, files) in order {
        let (kind, failed) = measure_kind_savings(kind, &files, meter)?;
        unread += failed;
        kinds.push(kind);
    }
    Ok((kinds, unread))
}

/// Lists the files below a path by their kind. Returns how many directories could not be read.
fn collect_files_by_kind(
    top: &Path,
    found: &mut BTreeMap<String, Vec<(PathBuf, u64)>>,
    meter: &ProgressMeter,
) -> Result<u64> {
    let mut pending = vec![top.to_path_buf()];
    let mut unread = 0;
    while let Some(path) = pending.pop() {
        check_interrupted(meter)?;
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => match std::fs::read_dir(&path) {
                Ok(entries) => pending.extend(entries.flatten().map(|entry| entry.path())),
                Err(_) => unread += 1,
            },
            Ok(metadata) if metadata.is_file() => {
                found.entry(file_extension(&path)).or_default().push((path, metadata.len()));
            }
            // To read a pipe or a device could block for ever.
            Ok(_) => {}
            Err(_) => unread += 1,
        }
    }
    Ok(unread)
}

fn file_extension(path: &Path) -> String {
    let ending =
        path.extension().and_then(|ending| ending.to_str()).filter(|ending| ending.len() <= ENDING_MAX);
    // The case of an ending does not make another kind of file.
    ending.map_or_else(|| NONE.into(), |ending| format!(".{}", ending.to_lowercase()))
}

/// One kind; and how many of its files could not be read.
fn measure_kind_savings(
    kind: String,
    files: &[(PathBuf, u64)],
    meter: &ProgressMeter,
) -> Result<(FileKindSavings, u64)> {
    let keys = new_bench_keys();
    // A store for each kind, or bytes of another kind would count as saved.
    let (store, _local) = new_discarding_store(&keys)?;
    let chunker = Chunker::new(ChunkSizes::DEFAULT, &keys.chunker_key());
    let writer = store.create_writer();
    let mut read = 0;
    let mut unread = 0;
    for (path, _) in files {
        check_interrupted(meter)?;
        match File::open(path) {
            Ok(mut file) => match store_file_chunks(&mut file, &chunker, &writer)? {
                Some(bytes) => {
                    read += 1;
                    meter.add_progress(1, bytes);
                }
                None => unread += 1,
            },
            Err(_) => unread += 1,
        }
    }
    let done = writer.finish()?;
    let bytes = done.bytes_given;
    let unique = done.bytes_new;
    Ok((FileKindSavings { kind, files: read, bytes, unique, compressed: done.bytes_compressed }, unread))
}

/// One file, chunk by chunk; None if it cannot be read to its end.
fn store_file_chunks(file: &mut File, chunker: &Chunker, writer: &BlobWriter) -> Result<Option<u64>> {
    let mut buffer = Vec::with_capacity(READ);
    let mut total = 0;
    let mut eof = false;
    loop {
        if !eof {
            let before = buffer.len();
            if file.take((READ - before) as u64).read_to_end(&mut buffer).is_err() {
                return Ok(None);
            }
            // Fewer bytes than it may take are read only at the end of the file.
            eof = buffer.len() < READ;
            total += (buffer.len() - before) as u64;
        }
        let mut used = 0;
        while let Some(rest) = buffer.get(used..).filter(|rest| !rest.is_empty()) {
            let Some(chunk) = chunker.find_chunk_end(rest, eof).and_then(|len| rest.get(..len)) else {
                break;
            };
            writer.put_blob(BlobKind::Chunk, chunk)?;
            used += chunk.len();
        }
        // The rest is the beginning of a chunk that ends in bytes that are not read yet.
        buffer.drain(..used);
        if eof {
            return Ok(Some(total));
        }
    }
}
