//! The use of sealed bytes. Each domain has its own keys, and a byte in the associated data.
//!
//! Invariant: bytes and context strings never change their meaning: stored volumes depend on them.

use vellum_types::BlobKind;

/// The kind of a record: prevents one kind of object from being presented as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordDomain {
    /// A blob in a pack.
    Blob(BlobKind),
    /// The table of contents at a pack's end.
    PackToc,
    /// A sorted run of the index.
    Index,
    /// A snapshot record.
    Snapshot,
    /// A worktree head, tag or pin.
    Ref,
    /// A writer's lease, which the collector heeds.
    Session,
    /// The volume's configuration.
    Config,
    /// A collector's record of what it is about to delete.
    Condemned,
    /// State that stays on this machine: write log, caches.
    Local,
    /// The record of an operation.
    Operation,
    /// A record of a shared log.
    SharedLog,
}

/// The BLAKE3 context strings of one domain's keys.
pub(crate) struct DomainContexts {
    pub seal: &'static str,
    pub id: &'static str,
    pub name: &'static str,
}

macro_rules! contexts {
    ($mode:literal, $domain:literal) => {
        DomainContexts {
            seal: concat!("vellum 2026-11-21 v1 ", $mode, " ", $domain, " seal"),
            id: concat!("vellum 2026-11-21 v1 ", $mode, " ", $domain, " id"),
            name: concat!("vellum 2026-11-21 v1 ", $mode, " ", $domain, " name"),
        }
    };
}

macro_rules! all_contexts {
    ($mode:literal) => {
        [
            contexts!($mode, "chunk"),
            contexts!($mode, "node"),
            contexts!($mode, "pack-toc"),
            contexts!($mode, "index"),
            contexts!($mode, "snapshot"),
            contexts!($mode, "ref"),
            contexts!($mode, "session"),
            contexts!($mode, "config"),
            contexts!($mode, "condemned"),
            contexts!($mode, "local"),
            contexts!($mode, "operation"),
            contexts!($mode, "shared-log"),
        ]
    };
}

impl RecordDomain {
    /// How many domains there are.
    pub(crate) const COUNT: usize = 12;

    /// DomainContexts for volumes with a master key, in the order of [`Self::table_index`].
    pub(crate) const SEALED_CONTEXTS: [DomainContexts; Self::COUNT] = all_contexts!("sealed");
    /// DomainContexts for volumes without one.
    pub(crate) const PLAIN_CONTEXTS: [DomainContexts; Self::COUNT] = all_contexts!("plain");

    /// The byte that stands for this domain in associated data.
    #[must_use]
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Blob(kind) => kind.as_byte(),
            Self::PackToc => 3,
            Self::Index => 4,
            Self::Snapshot => 5,
            Self::Ref => 6,
            Self::Session => 7,
            Self::Config => 8,
            Self::Condemned => 9,
            Self::Local => 10,
            Self::Operation => 11,
            Self::SharedLog => 12,
        }
    }

    /// Position in the tables of contexts and keys: domain bytes count from 1.
    pub(crate) fn table_index(self) -> usize {
        // No domain has byte 0, so that zeroed memory is of no domain at all.
        usize::from(self.as_byte()) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_keys_share_a_context() {
        let all: Vec<_> = RecordDomain::SEALED_CONTEXTS
            .iter()
            .chain(&RecordDomain::PLAIN_CONTEXTS)
            .flat_map(|contexts| [contexts.seal, contexts.id, contexts.name])
            .collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }

    #[test]
    fn every_domain_has_its_place_in_the_tables() {
        let places = [
            (RecordDomain::Blob(BlobKind::Chunk), "chunk"),
            (RecordDomain::Blob(BlobKind::Node), "node"),
            (RecordDomain::PackToc, "pack-toc"),
            (RecordDomain::Index, "index"),
            (RecordDomain::Snapshot, "snapshot"),
            (RecordDomain::Ref, "ref"),
            (RecordDomain::Session, "session"),
            (RecordDomain::Config, "config"),
            (RecordDomain::Condemned, "condemned"),
            (RecordDomain::Local, "local"),
            (RecordDomain::Operation, "operation"),
            (RecordDomain::SharedLog, "shared-log"),
        ];
        assert_eq!(places.len(), RecordDomain::COUNT);
        for (domain, word) in places {
            let expected = format!("vellum 2026-11-21 v1 sealed {word} seal");
            assert_eq!(RecordDomain::SEALED_CONTEXTS[domain.table_index()].seal, expected);
        }
    }
}
