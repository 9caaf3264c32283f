//! The file of the catalog: what is appended to it, and how it is written anew.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use vellum_types::{FieldWriter, SnapshotId};

use super::{CATALOG_FILE, KnownRecords, MAGIC, SnapshotCatalog};
use crate::error::Result;
use crate::record::SnapshotRecord;

impl SnapshotCatalog {
    /// Whether the catalog's file has parts that cannot be read.
    pub(crate) fn is_file_damaged(&self) -> bool {
        self.with_known_records(|known| {
            self.check_all_entries(known);
            known.damaged
        })
    }

    fn check_all_entries(&self, known: &mut KnownRecords) {
        // Collected first, because to find a record takes its place out of the map.
        for id in known.places.keys().copied().collect::<Vec<_>>() {
            self.find_record(known, &id);
        }
    }

    /// Writes the file anew as a whole, with what can be read of it: entries after a damaged one are never found.
    pub(super) fn rewrite_known(&self, known: &mut KnownRecords) -> Result<()> {
        // Entries that nobody has asked for yet are only in the file that is replaced here.
        self.check_all_entries(known);
        let all = known.records.iter().map(|(id, record)| (id, &**record));
        self.state.write_file(CATALOG_FILE, &[MAGIC, &*encode_entries(all)].concat())
    }

    pub(super) fn append_entries(&self, entries: &[u8]) -> std::io::Result<()> {
        let path = self.state.join(CATALOG_FILE);
        let mut file = File::options().append(true).create(true).mode(0o600).open(path)?;
        vellum_store::set_owner_from_dir(File::open(self.state.path())?, &file)?;
        // Two processes that begin a file at once both write the magic: the second one reads as a damaged entry, and the
        // file is written anew.
        let mut bytes = if file.metadata()?.len() == 0 { MAGIC.to_vec() } else { Vec::new() };
        bytes.extend_from_slice(entries);
        // In one write, and not synced: after a crash the tail may be torn, and is then read from the store.
        file.write_all(&bytes)
    }
}

pub(super) fn encode_entries<'a>(
    records: impl Iterator<Item = (&'a SnapshotId, &'a SnapshotRecord)>,
) -> Vec<u8> {
    let mut writer = FieldWriter::new();
    for (id, record) in records {
        writer.write_raw(id.as_bytes()).write_bytes(&record.encode());
    }
    writer.into_vec()
}
