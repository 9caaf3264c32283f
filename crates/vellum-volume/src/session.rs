//! Sessions: while a writer's session exists, the collector deletes nothing that the writer may have found in the
//! index or has just written.
//!
//! Protocol: a writer puts its session object before it reads the list of condemned packs; the collector writes that
//! list before it looks for sessions. So either the collector finds the session and deletes nothing, or the writer
//! sees the list and does not rely on those packs. A writer that relies on no pack need not read the list. A session ends
//! when its writer has finished, when its process is known to be dead, or when it was not renewed for [`LEASE`]. A writer
//! whose session is gone at the end fails. The collector has its own session, so only one collector runs at a time.
//! Processes that read a snapshot for long have sessions, too, which name its tree (`reader`). What clients of a mounted
//! worktree have stored, and no tree names yet, has a session that no process has (`unpublished`).

mod claim;
mod node_batch;
mod others;
mod reader;
mod unpublished;

use std::sync::Arc;
use std::time::Duration;

use vellum_crypto::{RecordDomain, VolumeKeys};
use vellum_host::process::{ProcessStat, host_name, process_scope, read_process_start};
use vellum_map::{MapError, MapRoot, NodeSink};
use vellum_store::{BlobStore, BlobWriter, ObjectKey, ObjectStore, WriteStats};
use vellum_types::{BlobId, BlobKind, FieldReader, FieldWriter, UnixTime};

pub(crate) use self::claim::SessionClaim;
pub(crate) use self::node_batch::NodeBatch;
pub use self::others::WaitingSession;
pub(crate) use self::others::{OtherSession, end_sessions, list_sessions};
pub use self::reader::{ReadSession, TreeReader};
pub(crate) use self::reader::{end_expired_readers, list_read_trees};
use crate::error::{Result, VolumeError};
use crate::key_epochs::KeyEpochs;
use crate::lost::DamageRecorder;
use crate::volume::Volume;

/// Time after which a session that was not renewed has ended, seconds: longer than any machine stalls. A writer that
/// was suspended for longer fails.
pub const LEASE: i64 = 24 * 3600;

const PREFIX: &str = "sessions/";
/// The key of the collector's session.
const COLLECTOR: &str = "sessions/collector";
/// Version of a writer's session.
const VERSION: u8 = 1;
/// Version of a reader's. Programs that do not know it take it for a writer's that they cannot read, and delete nothing.
const READER_VERSION: u8 = 2;
/// Version of one for unpublished content. Programs that do not know it delete nothing until it was not written for [`LEASE`].
const UNPUBLISHED_VERSION: u8 = 3;
/// Longest object, bytes: the longest session, sealed.
const OBJECT_MAX: u64 = 4096;
/// Longest host name and longest scope, bytes: both are below 100.
const TEXT_MAX: usize = 1024;

/// The writer or reader, as its session object describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionObject {
    /// Host of the writer.
    pub host: String,
    /// Boot of the kernel and process namespace: a process number is meaningful only there.
    pub scope: String,
    /// Process of the writer.
    pub pid: u32,
    /// Start of that process, in ticks since boot: distinguishes it from a later process with the same number.
    pub started: u64,
    /// When the session was last renewed.
    pub renewed: UnixTime,
    /// The tree that it reads; None: it writes.
    pub reading: Option<MapRoot>,
    /// The worktree whose unpublished content it stands for: it ends with that, and not with a process. Then it reads nothing.
    pub unpublished: Option<String>,
}

impl SessionObject {
    pub(crate) fn for_current_process() -> Self {
        let pid = std::process::id();
        Self {
            host: host_name(),
            scope: process_scope(),
            pid,
            started: read_process_start(pid),
            renewed: current_time(),
            reading: None,
            unpublished: None,
        }
    }

    /// Encodes the plaintext of the stored session (docs/format.md).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        let version = match (&self.unpublished, &self.reading) {
            (Some(_), _) => UNPUBLISHED_VERSION,
            (None, Some(_)) => READER_VERSION,
            (None, None) => VERSION,
        };
        writer
            .write_u8(version)
            .write_bytes(self.host.as_bytes())
            .write_bytes(self.scope.as_bytes())
            .write_u32(self.pid);
        writer.write_varint(self.started).write_signed_varint(self.renewed.secs);
        let _ = match (&self.unpublished, &self.reading) {
            (Some(worktree), _) => writer.write_bytes(worktree.as_bytes()),
            (None, Some(MapRoot(root))) => writer.write_raw(&root.0),
            (None, None) => &mut writer,
        };
        writer.into_vec()
    }

    /// Decodes what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, vellum_types::DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let version = reader.read_u8()?;
        if ![VERSION, READER_VERSION, UNPUBLISHED_VERSION].contains(&version) {
            return Err(vellum_types::DecodeError::Version(u32::from(version)));
        }
        let host = reader.read_string(TEXT_MAX)?.to_owned();
        let scope = reader.read_string(TEXT_MAX)?.to_owned();
        let pid = reader.read_u32()?;
        let started = reader.read_varint()?;
        let renewed = UnixTime { secs: reader.read_signed_varint()?, nanos: 0 };
        let reading = match version {
            READER_VERSION => Some(MapRoot(BlobId(reader.read_array()?))),
            _ => None,
        };
        let unpublished = match version {
            UNPUBLISHED_VERSION => Some(reader.read_string(TEXT_MAX)?.to_owned()),
            _ => None,
        };
        reader.expect_end()?;
        Ok(Self { host, scope, pid, started, renewed, reading, unpublished })
    }

    /// Returns whether its process is known to have ended, which only processes of the same machine can determine.
    #[must_use]
    pub fn is_process_dead(&self) -> bool {
        // The number alone would not do: the kernel gives it to a later process.
        self.unpublished.is_none()
            && self.scope == process_scope()
            && read_process_start(self.pid) != self.started
    }

    /// Returns whether whoever put it cannot be at work any more, also if the session is that of no process: its process is known
    /// to have ended, or it was put longer ago than [`LEASE`].
    pub(crate) fn is_writer_gone(&self) -> bool {
        let of_process = Self { unpublished: None, ..self.clone() };
        of_process.is_process_dead() || of_process.is_expired()
    }

    /// Returns whether its process is known to be stopped, as by SIGSTOP.
    #[must_use]
    pub fn is_process_stopped(&self) -> bool {
        self.unpublished.is_none()
            && self.scope == process_scope()
            && ProcessStat::read(self.pid)
                .is_ok_and(|stat| stat.is_stopped() && stat.start_ticks() == self.started)
    }

    /// Returns whether it was not renewed for [`LEASE`], assuming that its clock and this one agree.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.unpublished.is_none() && current_time().secs.saturating_sub(self.renewed.secs) > LEASE
    }
}

/// Checks that a session object was written by a holder of the key.
pub fn check_session_object(objects: &dyn ObjectStore, keys: &VolumeKeys, key: &ObjectKey) -> Result<()> {
    open_session(keys, key, &objects.get_object(key, OBJECT_MAX)?).map(|_| ())
}

fn open_session(keys: &VolumeKeys, key: &ObjectKey, sealed: &[u8]) -> Result<SessionObject> {
    let mut plain = Vec::new();
    keys.open_record(RecordDomain::Session, key.as_str().as_bytes(), sealed, &mut plain)
        .map_err(|error| VolumeError::Damaged { object: key.to_string(), reason: error.to_string() })?;
    SessionObject::decode(&plain).map_err(VolumeError::wrap_decode_error(key.to_string()))
}

fn seal_session(keys: &VolumeKeys, key: &ObjectKey, session: &SessionObject) -> Vec<u8> {
    let mut sealed = Vec::new();
    // Bound to its key: a copy under another key does not open.
    keys.seal_record(RecordDomain::Session, key.as_str().as_bytes(), &session.encode(), &mut sealed);
    sealed
}

/// An active writer. Dropped without `end`, it leaves some unreferenced packs, which the collector removes.
pub struct WriteSession {
    // Before the claim: what is being put must have arrived when the claim is withdrawn.
    blobs: Option<BlobWriter>,
    claim: SessionClaim,
    store: Arc<BlobStore>,
    damage: Arc<DamageRecorder>,
    epochs: Arc<KeyEpochs>,
    index_reading: IndexReadingTime,
    /// Whether there are lost blobs that this session may store again.
    is_damage_noted: bool,
}

/// When a session reads the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexReadingTime {
    /// When it begins, and when it is resumed.
    AtBegin,
    /// Before it relies on a blob that is stored.
    WhenNeeded,
}

impl WriteSession {
    pub(crate) fn begin_session(volume: &Volume, index_reading: IndexReadingTime) -> Result<Self> {
        if let Some(level) = volume.settings_in_force()?.compression_level() {
            volume.blobs.set_compression_level(level);
        }
        // The claim before the index is read, which is the order that the protocol rests on.
        let claim = SessionClaim::claim_as_writer(volume)?;
        let mut begun = Self {
            blobs: None,
            claim,
            store: Arc::clone(&volume.blobs),
            damage: Arc::clone(&volume.damage),
            epochs: Arc::clone(&volume.epochs),
            index_reading,
            is_damage_noted: volume.distrust_lost_blobs(),
        };
        begun.resume_session(volume)?;
        Ok(begun)
    }

    /// Continues writing after a flush. Fails if the index cannot be read.
    pub fn resume_session(&mut self, volume: &Volume) -> Result<()> {
        // What was condemned before this session stood must not be relied on: look again now, or before anything is.
        self.blobs = Some(match self.index_reading {
            IndexReadingTime::AtBegin => {
                volume.blobs.refresh_index()?;
                volume.blobs.create_writer()
            }
            IndexReadingTime::WhenNeeded => volume.blobs.create_lazy_writer(),
        });
        Ok(())
    }

    /// Returns the writer of blobs. Fails with [`VolumeError::SessionLost`] between a flush and
    /// [`WriteSession::resume_session`].
    pub fn blobs(&self) -> Result<&BlobWriter> {
        self.blobs.as_ref().ok_or(VolumeError::SessionLost)
    }

    /// Stores a blob unless the volume has it, and returns its id. It can be read after the next flush.
    pub fn put_blob(&self, kind: BlobKind, plaintext: &[u8]) -> Result<BlobId> {
        Ok(self.blobs()?.put_blob(kind, plaintext)?)
    }

    /// Renews the session if it is due; to be called regularly during long work. Fails with [`VolumeError::SessionLost`] if
    /// another process ended it.
    pub fn renew_if_due(&self) -> Result<()> {
        // Long work may outlast a rotation: what it seals from then on must be closed to slots that were removed.
        self.epochs.refresh_keys_if_due()?;
        self.claim.renew_if_due()
    }

    /// Makes all blobs durable and visible in the index. Fails with [`VolumeError::SessionLost`] if the session was lost
    /// meanwhile, so that no snapshot refers to blobs that may be deleted. The session exists until [`WriteSession::end_session`].
    pub fn flush_blobs(&mut self) -> Result<WriteStats> {
        // Taken, so that nothing can be put before the index was read again.
        let writer = self.blobs.take().ok_or(VolumeError::SessionLost)?;
        let stats = writer.finish()?;
        // Asked last: a collector that ended the session at any moment before may have deleted what the new blobs rely on.
        self.claim.check_not_lost()?;
        if self.is_damage_noted {
            // Otherwise every later session would store them once more.
            self.damage.remove_stored_blobs(|id| self.store.is_lost(id));
        }
        Ok(stats)
    }

    /// Ends the session, after a ref or record names what was written. Fails with [`VolumeError::SessionLost`] if it was lost
    /// before.
    pub fn end_session(self) -> Result<()> {
        self.claim.end_claim()
    }
}

impl NodeSink for WriteSession {
    fn store_node(&self, bytes: &[u8]) -> Result<BlobId, MapError> {
        self.put_blob(BlobKind::Node, bytes)
            .map_err(|error| MapError::from_store_failure(error.kind(), error))
    }
}

/// How far clocks of machines may differ without one of them counting as ahead.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// The time of a snapshot that is made at `time` and follows one of `parent`: a history does not run backwards because a
/// clock did. A parent that is dated in the future says nothing: its clock was ahead, and whatever follows it would be dated
/// in the future, too.
#[must_use]
pub fn date_after_parent(time: UnixTime, parent: UnixTime) -> UnixTime {
    let tolerance = i64::try_from(CLOCK_TOLERANCE.as_secs()).unwrap_or(i64::MAX);
    let is_ahead = parent.secs > current_time().secs.saturating_add(tolerance);
    if is_ahead { time } else { time.max(parent) }
}

/// Returns the current time.
#[must_use]
pub fn current_time() -> UnixTime {
    let now = jiff::Timestamp::now();
    let nanos = now.subsec_nanosecond();
    if nanos >= 0 {
        UnixTime { secs: now.as_second(), nanos: nanos.unsigned_abs() }
    } else {
        // Before 1970, jiff counts both parts backwards. Stored nanoseconds always count forwards.
        UnixTime { secs: now.as_second() - 1, nanos: 1_000_000_000 - nanos.unsigned_abs() }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_collects_is_gone_all_the_same() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let started = |pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.to_owned()
        };
        while !started(child.id()).starts_with('Z') {
            std::thread::yield_now();
        }
        let session = SessionObject { pid: child.id(), started: 1, ..SessionObject::for_current_process() };
        assert!(session.is_process_dead());
        assert_eq!(read_process_start(child.id()), 0);
        child.wait().unwrap();
        assert!(!SessionObject::for_current_process().is_process_dead());
    }

    #[test]
    fn a_session_of_any_moment_can_be_asked_whether_it_is_over() {
        let renewed = |secs| SessionObject {
            renewed: UnixTime { secs, nanos: 0 },
            ..SessionObject::for_current_process()
        };
        assert!(renewed(i64::MIN).is_expired());
        assert!(!renewed(i64::MAX).is_expired());
    }
}
