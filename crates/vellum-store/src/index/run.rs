//! A local run, opened: looked up in, walked, verified.
//!
//! Invariant: no bytes of the file can make a lookup panic or leave the file; damage that the header does not show
//! causes wrong hints at worst. Small files are read and checked whole, large ones are mapped.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use memmap2::Mmap;
use vellum_types::{BlobId, BlobKind, DecodeError, FieldReader, PackId, VolumeId};

use super::layout::{
    CONDEMNED_LEN, HEADER_LEN, PACK_LEN, RECORD_LEN, RUN_ID_LEN, RunHeader, RunSections, compute_fan_slot,
};
use super::record::CondemnedPack;
use super::{BlobLocation, IndexRunId, filter};
use crate::blob::BlobError;
use vellum_host::owner::set_owner_from_dir;

/// Files up to this many bytes are read whole: cheaper than a mapping, and their checksum costs nothing.
pub(super) const READ_WHOLE_MAX: u64 = 128 << 10;

enum RunBytes {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl RunBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

/// A run that can be searched.
pub(crate) struct IndexRun {
    bytes: RunBytes,
    header: RunHeader,
    sections: RunSections,
    supersedes: Vec<IndexRunId>,
    condemned: Vec<CondemnedPack>,
}

impl IndexRun {
    /// Opens the file of a run; any doubt about it is an error, upon which the file is made anew.
    pub(crate) fn open(path: &Path, volume: VolumeId, id: IndexRunId) -> Result<Self, BlobError> {
        let local = |action, source| BlobError::Local { path: path.to_owned(), action, source };
        let mut file = File::open(path).map_err(|e| local("open", e))?;
        let len = file.metadata().map_err(|e| local("open", e))?.len();
        let bytes = if len <= READ_WHOLE_MAX {
            let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1);
            file.read_to_end(&mut bytes).map_err(|e| local("read", e))?;
            RunBytes::Read(bytes)
        } else {
            RunBytes::Mapped(map_file(&file).map_err(|e| local("map", e))?)
        };
        let run = Self::from_run_bytes(bytes)
            .map_err(|fault| BlobError::LocalRun { path: path.to_owned(), fault })?;
        let fault = if run.header.volume != volume || run.header.id != id {
            "name"
        // A large file is mapped, and too long to be hashed each time. Damage in it gives a wrong hint, upon which
        // `repair_local_runs` checks it.
        } else if matches!(run.bytes, RunBytes::Read(_)) && !run.is_intact() {
            "checksum"
        } else {
            return Ok(run);
        };
        Err(BlobError::LocalRun { path: path.to_owned(), fault: DecodeError::Invalid(fault) })
    }

    /// A run in memory, of bytes as [`super::layout::encode_run`] makes them.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        Self::from_run_bytes(RunBytes::Read(bytes))
    }

    fn from_run_bytes(bytes: RunBytes) -> Result<Self, DecodeError> {
        let file = bytes.as_slice();
        let header = RunHeader::decode(file)?;
        let sections = header.sections().ok_or(DecodeError::Invalid("counts"))?;
        match sections.condemned.end.cmp(&file.len()) {
            Ordering::Equal => {}
            Ordering::Greater => return Err(DecodeError::Truncated),
            Ordering::Less => return Err(DecodeError::Trailing),
        }
        let supersedes = file.get(sections.supersedes.clone()).unwrap_or_default();
        let supersedes =
            supersedes.chunks_exact(RUN_ID_LEN).filter_map(|id| Some(IndexRunId(*id.first_chunk()?)));
        let supersedes = supersedes.collect();
        let condemned = file.get(sections.condemned.clone()).unwrap_or_default();
        let condemned =
            condemned.chunks_exact(CONDEMNED_LEN).map(read_condemned).collect::<Result<_, _>>()?;
        Ok(Self { bytes, header, sections, supersedes, condemned })
    }

    pub(crate) fn id(&self) -> IndexRunId {
        self.header.id
    }

    /// How many blobs it knows.
    pub(crate) fn len(&self) -> usize {
        self.header.entries as usize
    }

    pub(crate) fn superseded_runs(&self) -> &[IndexRunId] {
        &self.supersedes
    }

    pub(crate) fn condemned_packs(&self) -> &[CondemnedPack] {
        &self.condemned
    }

    /// Whether the whole file is as it was written.
    pub(crate) fn is_intact(&self) -> bool {
        let body = self.bytes.as_slice().get(HEADER_LEN..).unwrap_or_default();
        blake3::hash(body).as_bytes() == &self.header.body_hash
    }

    /// The place of a blob according to the run.
    pub(crate) fn find_blob(&self, id: &BlobId) -> Option<BlobLocation> {
        if !filter::may_contain_id(self.section_bytes(|s| &s.filter), id) {
            return None;
        }
        let (mut low, mut high) = self.slot_range(compute_fan_slot(id, self.header.fan_bits))?;
        while low < high {
            let middle = low + (high - low) / 2;
            let record = self.record_bytes(middle)?;
            match record.get(..BlobId::LEN)?.cmp(&id.as_bytes()[..]) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return self.decode_location(record),
            }
        }
        None
    }

    /// All blobs, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlobId, BlobLocation)> + '_ {
        // A damaged record is left out. Merges, which would lose it for good, check the whole run before.
        (0..self.len()).filter_map(|number| {
            let record = self.record_bytes(number)?;
            Some((BlobId::from_slice(record.get(..BlobId::LEN)?)?, self.decode_location(record)?))
        })
    }

    /// The blobs of some packs, in the order of their ids.
    pub(crate) fn entries_in(
        &self,
        is_wanted: impl Fn(&PackId) -> bool,
    ) -> impl Iterator<Item = (BlobId, BlobLocation)> + '_ {
        let wanted: Vec<bool> = (0..self.header.packs)
            .map(|number| self.pack_by_number(number).is_some_and(|(pack, _)| is_wanted(&pack)))
            .collect();
        (0..self.len()).filter_map(move |number| {
            let record = self.record_bytes(number)?;
            if !wanted.get(pack_number(record)?).is_some_and(|wanted| *wanted) {
                return None;
            }
            Some((BlobId::from_slice(record.get(..BlobId::LEN)?)?, self.decode_location(record)?))
        })
    }

    /// The packs of its blobs. It may speak of others, if it has all their blobs in these.
    pub(crate) fn used_packs(&self) -> impl Iterator<Item = (PackId, BlobKind)> + '_ {
        let mut used = vec![false; self.header.packs as usize];
        for pack in (0..self.len()).filter_map(|number| pack_number(self.record_bytes(number)?)) {
            if let Some(used) = used.get_mut(pack) {
                *used = true;
            }
        }
        (0..self.header.packs)
            .zip(used)
            .filter(|(_, is_used)| *is_used)
            .filter_map(|(number, _)| self.pack_by_number(number))
    }

    /// The packs that it speaks of.
    pub(crate) fn packs(&self) -> impl Iterator<Item = (PackId, BlobKind)> + '_ {
        (0..self.header.packs).filter_map(|number| self.pack_by_number(number))
    }

    fn section_bytes(&self, which: impl Fn(&RunSections) -> &std::ops::Range<usize>) -> &[u8] {
        self.bytes.as_slice().get(which(&self.sections).clone()).unwrap_or_default()
    }

    fn slot_range(&self, slot: usize) -> Option<(usize, usize)> {
        let mut reader = FieldReader::new(self.section_bytes(|s| &s.fan).get(slot * 4..slot * 4 + 8)?);
        let low = reader.read_u32().ok()? as usize;
        // A damaged table must not lead the search out of the records.
        let high = reader.read_u32().ok()? as usize;
        (low <= high && high <= self.len()).then_some((low, high))
    }

    fn record_bytes(&self, number: usize) -> Option<&[u8]> {
        let start = number * RECORD_LEN;
        self.section_bytes(|s| &s.records).get(start..start + RECORD_LEN)
    }

    fn decode_location(&self, record: &[u8]) -> Option<BlobLocation> {
        let mut reader = FieldReader::new(record.get(BlobId::LEN..)?);
        let pack = reader.read_u32().ok()?;
        let offset = reader.read_u32().ok()?;
        let len = reader.read_u32().ok()?;
        // A damaged record must not cause a large read.
        if len as usize > crate::pack::SEALED_MAX {
            return None;
        }
        let (pack, kind) = self.pack_by_number(pack)?;
        Some(BlobLocation { pack, offset, len, kind })
    }

    fn pack_by_number(&self, number: u32) -> Option<(PackId, BlobKind)> {
        let start = number as usize * PACK_LEN;
        let (kind, id) = self.section_bytes(|s| &s.packs).get(start..start + PACK_LEN)?.split_last()?;
        Some((PackId::from_slice(id)?, BlobKind::from_byte(*kind)?))
    }
}

/// The place of a record's pack in the table of packs.
fn pack_number(record: &[u8]) -> Option<usize> {
    Some(FieldReader::new(record.get(BlobId::LEN..)?).read_u32().ok()? as usize)
}

fn read_condemned(bytes: &[u8]) -> Result<CondemnedPack, DecodeError> {
    let mut reader = FieldReader::new(bytes);
    Ok(CondemnedPack { pack: PackId(reader.read_array()?), since: reader.read_u64()? })
}

fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: files of the local index are written under another name and renamed, never changed or truncated
    // afterwards; removing one leaves a mapping of it intact. The folder is private to the volume's owner.
    #[expect(unsafe_code, reason = "the only way to search a file that is larger than memory")]
    unsafe {
        Mmap::map(file)
    }
}

/// Writes the file of a run. It is not synced: a torn file is noticed and made anew.
pub(crate) fn write_run_file(path: &Path, bytes: &[u8]) -> Result<(), BlobError> {
    let local = |source| BlobError::Local { path: path.to_owned(), action: "write", source };
    // The name is random because several processes may make the local form of one run at the same time.
    let random = getrandom::u64().map_err(|e| local(std::io::Error::other(e)))?;
    let temp = path.with_extension(format!("{random:016x}.tmp"));
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temp)?;
        set_owner_from_dir(File::open(path.parent().unwrap_or(path))?, &file)?;
        file.write_all(bytes)?;
        std::fs::rename(&temp, path)
    };
    let written = write();
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temp);
        local(error)
    })
}
