//! The objects of operations: where they are, putting and reading them.

use std::sync::Arc;

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_store::{ObjectKey, ObjectStore};
use vellum_types::{BlobId, LookupResult};

use super::command::current_command;
use super::record::{OperationEffect, OperationLink, OperationRecord, RECORD_MAX};
use super::scope::{current_reverted_operation, scoped_worktree};
use crate::error::{Result, VolumeError};
use crate::key_epochs::KeyEpochs;
use crate::record::{recorded_host_name, recorded_user_name};
use crate::refs::RefKind;
use crate::session::current_time;

/// The folder of all chains.
pub(crate) const OPERATIONS_FOLDER: &str = "operations/";
/// Longest object, bytes: the longest record, sealed.
const OBJECT_MAX: u64 = RECORD_MAX as u64 + 64;
/// The chain of what was done from no worktree of the store.
const VOLUME_CHAIN: &str = "volume";

/// Which chain: that of the ref that names its last record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChainName {
    pub kind: RefKind,
    pub name: String,
}

impl ChainName {
    pub fn of_worktree(name: &str) -> Self {
        Self { kind: RefKind::Worktree, name: name.into() }
    }

    pub fn of_volume() -> Self {
        Self { kind: RefKind::Chain, name: VOLUME_CHAIN.into() }
    }

    /// The worktree whose chain it is; none for that of the volume.
    pub fn worktree(&self) -> Option<&str> {
        (self.kind == RefKind::Worktree).then_some(&self.name)
    }

    /// The chain of a worktree, or that of the volume.
    pub fn of(worktree: Option<&str>) -> Self {
        worktree.map_or_else(Self::of_volume, Self::of_worktree)
    }
}

/// A record that was sealed and may be put.
pub(crate) struct SealedOperation {
    pub key: ObjectKey,
    pub bytes: Vec<u8>,
    pub link: OperationLink,
}

/// Puts a record that is sealed; fails with [`StoreError::Exists`] if its number is taken.
pub(crate) type PutOperation<'p> = dyn FnMut(&SealedOperation) -> Result<()> + 'p;

/// How the record of a change gets into the store, and what it says beside the change of the ref.
pub(crate) struct OperationSink<'p> {
    pub effects: Vec<OperationEffect>,
    pub put: &'p mut PutOperation<'p>,
}

/// The records of a store.
pub(crate) struct OperationLog {
    objects: Arc<dyn ObjectStore>,
    keys: Arc<VolumeKeys>,
    epochs: Arc<KeyEpochs>,
    /// The worktree from which operations are carried out.
    pub worktree: String,
}

impl OperationLog {
    pub fn new(objects: Arc<dyn ObjectStore>, epochs: Arc<KeyEpochs>, worktree: String) -> Self {
        Self { objects, keys: epochs.volume_keys().clone(), epochs, worktree }
    }

    /// The folder of a chain.
    pub fn chain_folder(&self, chain: &ChainName) -> String {
        let kind = chain.kind.folder_name();
        // Keyed, because whoever can list the store is not to learn the names of worktrees.
        let id =
            self.keys.compute_name_id(RecordDomain::Operation, format!("{kind}/{}", chain.name).as_bytes());
        format!("{OPERATIONS_FOLDER}{}/", BlobId(id))
    }

    /// The path of a record's object.
    pub fn record_path(&self, chain: &ChainName, sequence: u64) -> String {
        format!("{}{sequence:016x}", self.chain_folder(chain))
    }

    pub fn record_key(&self, chain: &ChainName, sequence: u64) -> Result<ObjectKey> {
        Ok(ObjectKey::new(self.record_path(chain, sequence))?)
    }

    /// A record of these effects that comes after `previous` under the number `sequence`.
    pub fn seal_operation(
        &self,
        chain: &ChainName,
        sequence: u64,
        previous: Option<OperationLink>,
        effects: &[OperationEffect],
    ) -> Result<SealedOperation> {
        let reverted = current_reverted_operation().map(OperationEffect::Reverted);
        let command = current_command();
        let record = OperationRecord {
            sequence,
            previous,
            time: current_time(),
            host: recorded_host_name(),
            user: recorded_user_name(),
            pid: std::process::id(),
            worktree: scoped_worktree().unwrap_or_else(|| self.worktree.clone()),
            command: command.words,
            command_id: command.id,
            effects: reverted.into_iter().chain(effects.iter().cloned()).collect(),
        };
        let key = self.record_key(chain, sequence)?;
        let mut bytes = Vec::new();
        // Bound to its key: a copy under another key does not open.
        self.keys.seal_record(RecordDomain::Operation, key.as_str().as_bytes(), &record.encode(), &mut bytes);
        Ok(SealedOperation { key, bytes, link: record.link(&self.keys) })
    }

    pub fn put_operation(&self, sealed: &SealedOperation) -> Result<()> {
        // Never replaced: of two who choose the same number, the second learns it here, and takes another one.
        Ok(self.objects.put_object(&sealed.key, &sealed.bytes)?)
    }

    /// The record under a number; None if there is none. It proves nothing until a ref or another record names it.
    pub fn fetch_operation(&self, chain: &ChainName, sequence: u64) -> Result<Option<OperationRecord>> {
        self.fetch_record(&self.record_key(chain, sequence)?)
    }

    /// The record in an object; None if it is not there.
    pub fn fetch_record(&self, key: &ObjectKey) -> Result<Option<OperationRecord>> {
        let Some(sealed) = self.objects.get_object(key, OBJECT_MAX).none_if_missing()? else {
            return Ok(None);
        };
        let mut plain = Vec::new();
        // Of whatever key: records are not sealed anew by a rotation. A ref, which is, leads to each of them by its hash.
        self.keys
            .open_record_in_epoch(RecordDomain::Operation, key.as_str().as_bytes(), &sealed, &mut plain)
            .map_err(|error| self.epochs.explain_unseal_error(key, error))?;
        let record =
            OperationRecord::decode(&plain).map_err(VolumeError::wrap_decode_error(key.to_string()))?;
        // Links count the number in the record, and the record is found by that in its key.
        if parse_sequence(key) != Some(record.sequence) {
            let reason = "it has the number of another one".into();
            return Err(VolumeError::Damaged { object: key.to_string(), reason });
        }
        Ok(Some(record))
    }

    /// What names a record.
    pub fn compute_link(&self, record: &OperationRecord) -> OperationLink {
        record.link(&self.keys)
    }

    /// The numbers of all records of a chain, also of those that were not carried out, in ascending order.
    pub fn list_sequences(&self, chain: &ChainName) -> Result<Vec<u64>> {
        let listed = self.objects.select_objects(&self.chain_folder(chain), is_operation_key)?.objects;
        let mut sequences: Vec<_> = listed.iter().filter_map(|info| parse_sequence(&info.key)).collect();
        sequences.sort_unstable();
        Ok(sequences)
    }

    /// The records of all chains.
    pub fn list_records(&self) -> Result<Vec<ObjectKey>> {
        let listed = self.objects.select_objects(OPERATIONS_FOLDER, is_operation_key)?.objects;
        Ok(listed.into_iter().map(|info| info.key).collect())
    }

    pub fn objects(&self) -> &dyn ObjectStore {
        &*self.objects
    }
}

/// Whether a key is that of the record of an operation.
pub(crate) fn is_operation_key(key: &ObjectKey) -> bool {
    parse_sequence(key).is_some()
}

/// Whether a key is that of the folder of a chain.
pub(crate) fn is_chain_folder(key: &ObjectKey) -> bool {
    key.as_str().strip_prefix(OPERATIONS_FOLDER).is_some_and(|chain| chain.parse::<BlobId>().is_ok())
}

fn parse_sequence(key: &ObjectKey) -> Option<u64> {
    let (chain, digits) = key.as_str().strip_prefix(OPERATIONS_FOLDER)?.split_once('/')?;
    chain.parse::<BlobId>().ok()?;
    let sequence = u64::from_str_radix(digits, 16).ok()?;
    // One number has one name.
    (format!("{sequence:016x}") == digits).then_some(sequence)
}
