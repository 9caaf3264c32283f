//! Entries that are taken from a basis directory instead of the source.
//!
//! Invariant: nothing is written in a basis directory. An entry that has changed there since it was listed is taken
//! from the source.

use vellum_host::beneath::{BeneathError, HeldDir};
use vellum_types::FileKind;

use super::EntryWriter;
use super::file::EntryDestination;
use crate::ends::SourceContent;
use crate::error::Result;
use crate::model::listing::ListingEntry;
use crate::plan::{SyncStep, WriteMethod};

impl EntryWriter<'_> {
    /// Links an entry's name to the file in `from`; copies the file if it cannot be linked.
    pub fn link_from_basis(
        &self,
        from: &HeldDir,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        // The basis was compared when it was listed. This only finds entries that were replaced since then; a
        // link shares whatever is there.
        let looks_equal = match from.stat(entry.name()) {
            Ok(stat) => {
                stat.kind == entry.kind() && (stat.kind != FileKind::File || stat.size == entry.size())
            }
            Err(_) => false,
        };
        if looks_equal && self.link_file((from, entry.name()), home.dir, step, entry)?.is_some() {
            return Ok(Vec::new());
        }
        self.copy_from_basis(from, home, step, entry)
    }

    /// Writes a file with the content of that in `from`, and the attributes of the source's.
    pub fn copy_from_basis(
        &self,
        from: &HeldDir,
        home: EntryDestination<'_>,
        step: &SyncStep,
        entry: &ListingEntry<'_>,
    ) -> Result<Vec<String>> {
        if !entry.is_file() {
            return self.create_node(home.dir, step, entry);
        }
        match from.open_file(entry.name()) {
            // The source of the copy is checked for changes while it is read, as any other file of this host.
            Ok(opened) if opened.stat.size == entry.size() => {
                self.write_staged_file(home, step, entry, None, &mut SourceContent::File(opened))
            }
            opened => {
                opened.map(drop).or_else(ignore_open_error)?;
                self.write_file(home, step, WriteMethod::Whole, entry)
            }
        }
    }
}

/// Ignores the error of a file that cannot be opened, as the entry is then taken from the source; only a lack of
/// descriptors is an error.
fn ignore_open_error(error: BeneathError) -> Result<()> {
    match error.errno() {
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Err(error.into()),
        _ => Ok(()),
    }
}
