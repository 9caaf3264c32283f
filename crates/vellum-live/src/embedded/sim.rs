//! A disk in memory that remembers every operation: what a crash leaves can be made from any moment of it. For tests,
//! of other crates too.
//!
//! A disk has folders: one without a name, and others, whose files have names like `folder/file` in what a crash
//! leaves.
//!
//! Rules of a loss of power: what was written to a file before its last sync is there; what was written later is
//! there, or not, or in part, or is garbage, each write for itself. Names are as they were at the last sync of the
//! folder; of later changes any may be there.

#![expect(clippy::indexing_slicing, reason = "for tests: what cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::folder::{EngineFile, EngineFolder};

/// Bytes that a file is lengthened by at most when room is reserved.
const RESERVED: u64 = 700;
/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Something that was done.
#[derive(Debug, Clone)]
enum SimOperation {
    /// Names that change together: each with the file that it now names, if any.
    Names(Vec<(String, Option<usize>)>),
    Write(usize, u64, Vec<u8>),
    SetLen(usize, u64),
    SyncFile(usize),
    /// Of the folder whose files' names begin like this.
    SyncFolder(String),
    /// Something outside the disk.
    Elsewhere,
}

/// How an operation goes wrong.
#[derive(Debug, Clone, Copy)]
pub enum SimFault {
    /// No space: half of what was to be written is.
    Full,
    /// An error of the disk.
    Broken,
}

/// How much of what was not synced survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimLoss {
    /// All: the process was killed.
    Nothing,
    /// Nothing.
    Everything,
    /// Names all, bytes at random.
    Bytes,
    /// Bytes all, names at random.
    Names,
    /// At random.
    Some,
}

pub const LOSSES: [SimLoss; 5] =
    [SimLoss::Nothing, SimLoss::Everything, SimLoss::Bytes, SimLoss::Names, SimLoss::Some];

#[derive(Default)]
struct SimState {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
    log: Vec<SimOperation>,
    /// What stood there at the start, durable.
    first: (BTreeMap<String, usize>, Vec<Vec<u8>>),
    /// Operations that go well before one does not.
    fault: Option<(usize, SimFault)>,
    /// Whether everything after the fault goes wrong, too.
    lasting: bool,
}

/// A folder of a disk.
#[derive(Default)]
pub struct SimFolder {
    sim: Arc<Mutex<SimState>>,
    /// What the names of its files begin with.
    prefix: String,
}

struct SimFile {
    sim: Arc<Mutex<SimState>>,
    id: usize,
}

/// A random sequence that is the same in every run.
pub struct SimRandom(pub u64);

impl SimRandom {
    /// The next number: xorshift64, as Marsaglia gave it.
    pub fn next_number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn next_below(&mut self, end: u64) -> u64 {
        self.next_number() % end
    }
}

impl SimFolder {
    /// The folder without a name of a disk with durable files.
    pub fn with_files(files: BTreeMap<String, Vec<u8>>) -> Arc<Self> {
        let mut sim = SimState::default();
        for (name, bytes) in files {
            sim.names.insert(name, sim.files.len());
            sim.files.push(bytes);
        }
        sim.first = (sim.names.clone(), sim.files.clone());
        Arc::new(Self { sim: Arc::new(Mutex::new(sim)), prefix: String::new() })
    }

    /// Another folder of the same disk.
    pub fn sibling_folder(&self, name: &str) -> Arc<Self> {
        Arc::new(Self { sim: Arc::clone(&self.sim), prefix: format!("{name}/") })
    }

    /// Counts something that was done outside the disk, so that crashes before it and after it can be distinguished.
    pub fn record_external_step(&self) -> usize {
        let mut sim = self.sim.lock();
        sim.log.push(SimOperation::Elsewhere);
        sim.log.len()
    }

    /// How much was done so far.
    pub fn operation_count(&self) -> usize {
        self.sim.lock().log.len()
    }

    /// After `after` more operations one fails; all of them from then on, if it lasts.
    pub fn inject_fault(&self, after: usize, fault: SimFault, lasting: bool) {
        let mut sim = self.sim.lock();
        sim.fault = Some((after, fault));
        sim.lasting = lasting;
    }

    /// From now on nothing fails. Returns whether something did.
    pub fn clear_fault(&self) -> bool {
        self.sim.lock().fault.take().is_none_or(|(left, _)| left == 0)
    }

    /// The files as they are.
    pub fn file_contents(&self) -> BTreeMap<String, Vec<u8>> {
        let sim = self.sim.lock();
        sim.names.iter().map(|(name, id)| (name.clone(), sim.files[*id].clone())).collect()
    }

    /// The folder as a process finds it that comes after one which was killed after `ops` operations: what was not
    /// synced can still be lost.
    pub fn folder_after_kill(&self, ops: usize) -> Arc<Self> {
        let files = self.simulate_crash(ops, SimLoss::Nothing, &mut SimRandom(1));
        let sim = self.sim.lock();
        let (mut names, all) = sim.first.clone();
        for op in &sim.log[..ops] {
            if let SimOperation::Names(changed) = op {
                apply_rename(&mut names, changed);
            }
        }
        let mut killed = SimState {
            files: all,
            log: sim.log[..ops].to_vec(),
            first: sim.first.clone(),
            ..SimState::default()
        };
        killed.files.resize(sim.files.len(), Vec::new());
        for (name, id) in &names {
            killed.files[*id].clone_from(&files[name]);
        }
        killed.names = names;
        Arc::new(Self { sim: Arc::new(Mutex::new(killed)), prefix: self.prefix.clone() })
    }

    /// What a crash after the first `ops` operations may leave.
    pub fn simulate_crash(
        &self,
        ops: usize,
        loss: SimLoss,
        random: &mut SimRandom,
    ) -> BTreeMap<String, Vec<u8>> {
        let sim = self.sim.lock();
        let log = &sim.log[..ops];
        let (mut names, mut files) = sim.first.clone();
        files.resize(sim.files.len(), Vec::new());
        let synced_at = |name: &str| {
            let is_of = |op: &SimOperation| matches!(op, SimOperation::SyncFolder(prefix) if folder_prefix(name) == prefix);
            log.iter().rposition(is_of)
        };
        for (at, op) in log.iter().enumerate() {
            let synced_later = |id: usize| {
                log[at..].iter().any(|op| matches!(op, SimOperation::SyncFile(synced) if *synced == id))
            };
            match op {
                SimOperation::Names(changed) => {
                    let folder_synced = changed.first().and_then(|(name, _)| synced_at(name));
                    let is_there = folder_synced.is_some_and(|synced| at < synced)
                        || match loss {
                            SimLoss::Nothing | SimLoss::Bytes => true,
                            SimLoss::Everything => false,
                            SimLoss::Names | SimLoss::Some => random.next_below(2) == 0,
                        };
                    if is_there {
                        apply_rename(&mut names, changed);
                    }
                }
                SimOperation::Write(id, offset, bytes) if synced_later(*id) => {
                    apply_write(&mut files[*id], *offset, bytes)
                }
                SimOperation::Write(id, offset, bytes) => {
                    apply_write_loss(&mut files[*id], *offset, bytes, loss, random)
                }
                SimOperation::SetLen(id, len) => {
                    let is_lost = match loss {
                        SimLoss::Nothing | SimLoss::Names => false,
                        SimLoss::Everything => true,
                        SimLoss::Bytes | SimLoss::Some => random.next_below(2) == 0,
                    };
                    if synced_later(*id) || !is_lost {
                        files[*id].resize(*len as usize, 0);
                    }
                }
                SimOperation::SyncFile(_) | SimOperation::SyncFolder(_) | SimOperation::Elsewhere => {}
            }
        }
        names.into_iter().map(|(name, id)| (name, files[id].clone())).collect()
    }
}

/// A write that was not synced.
fn apply_write_loss(file: &mut Vec<u8>, offset: u64, bytes: &[u8], loss: SimLoss, random: &mut SimRandom) {
    match loss {
        SimLoss::Nothing | SimLoss::Names => apply_write(file, offset, bytes),
        SimLoss::Everything => {}
        SimLoss::Bytes | SimLoss::Some => match random.next_below(5) {
            0 => apply_write(file, offset, bytes),
            1 => {}
            2 => apply_write(file, offset, &bytes[..random.next_below(bytes.len() as u64 + 1) as usize]),
            3 => {
                let garbage: Vec<u8> = bytes.iter().map(|_| random.next_number() as u8).collect();
                apply_write(file, offset, &garbage);
            }
            _ => {
                for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                    if random.next_below(2) == 0 {
                        apply_write(file, offset + (number * SECTOR) as u64, sector);
                    }
                }
            }
        },
    }
}

/// What the names of the files beside this one begin with.
fn folder_prefix(name: &str) -> &str {
    name.rfind('/').map_or("", |end| &name[..=end])
}

fn apply_rename(names: &mut BTreeMap<String, usize>, changed: &[(String, Option<usize>)]) {
    for (name, id) in changed {
        match id {
            Some(id) => names.insert(name.clone(), *id),
            None => names.remove(name),
        };
    }
}

fn apply_write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(bytes);
}

impl SimState {
    /// Whether the next operation goes wrong, and how.
    fn next_fault(&mut self) -> Option<SimFault> {
        let lasting = self.lasting;
        let (left, fault) = self.fault.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let fault = *fault;
        if !lasting {
            self.fault = None;
        }
        Some(fault)
    }

    fn try_operation(&mut self) -> io::Result<()> {
        self.next_fault().map_or(Ok(()), |fault| Err(fault_error(fault)))
    }

    fn record_rename(&mut self, changed: Vec<(String, Option<usize>)>) {
        apply_rename(&mut self.names, &changed);
        self.log.push(SimOperation::Names(changed));
    }
}

fn fault_error(fault: SimFault) -> io::Error {
    match fault {
        SimFault::Full => ErrorKind::StorageFull.into(),
        SimFault::Broken => io::Error::from_raw_os_error(5),
    }
}

impl SimFolder {
    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl EngineFolder for SimFolder {
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>> {
        let name = self.full_name(name);
        let mut sim = self.sim.lock();
        sim.try_operation()?;
        let id = match sim.names.get(&name).copied() {
            Some(id) => {
                sim.files[id].clear();
                sim.log.push(SimOperation::SetLen(id, 0));
                id
            }
            None => {
                let id = sim.files.len();
                sim.files.push(Vec::new());
                sim.record_rename(vec![(name, Some(id))]);
                id
            }
        };
        Ok(Arc::new(SimFile { sim: Arc::clone(&self.sim), id }))
    }

    fn open_file(&self, name: &str) -> io::Result<Arc<dyn EngineFile>> {
        let sim = self.sim.lock();
        let id = *sim.names.get(&self.full_name(name)).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { sim: Arc::clone(&self.sim), id }))
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        let mut sim = self.sim.lock();
        sim.try_operation()?;
        let from = self.full_name(from);
        let to = self.full_name(to);
        let id = *sim.names.get(&from).ok_or(ErrorKind::NotFound)?;
        sim.record_rename(vec![(from, None), (to, Some(id))]);
        Ok(())
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        let name = self.full_name(name);
        let mut sim = self.sim.lock();
        if sim.names.contains_key(&name) {
            sim.try_operation()?;
            sim.record_rename(vec![(name, None)]);
        }
        Ok(())
    }

    fn list_files(&self) -> io::Result<Vec<String>> {
        let sim = self.sim.lock();
        let ours = sim.names.keys().filter(|name| folder_prefix(name) == self.prefix);
        Ok(ours.map(|name| name[self.prefix.len()..].to_owned()).collect())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut sim = self.sim.lock();
        sim.try_operation()?;
        sim.log.push(SimOperation::SyncFolder(self.prefix.clone()));
        Ok(())
    }

    fn describe_file(&self, name: &str) -> String {
        self.full_name(name)
    }

    fn dir_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl EngineFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let sim = self.sim.lock();
        let bytes = sim.files[self.id].get(offset as usize..).unwrap_or_default();
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut sim = self.sim.lock();
        let fault = sim.next_fault();
        let bytes = if fault.is_some() { &bytes[..bytes.len() / 2] } else { bytes };
        apply_write(&mut sim.files[self.id], offset, bytes);
        sim.log.push(SimOperation::Write(self.id, offset, bytes.to_vec()));
        fault.map_or(Ok(()), |fault| Err(fault_error(fault)))
    }

    fn write_both_at(&self, first: &[u8], second: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(&[first, second].concat(), offset)
    }

    fn sync_file(&self) -> io::Result<()> {
        let mut sim = self.sim.lock();
        sim.try_operation()?;
        sim.log.push(SimOperation::SyncFile(self.id));
        Ok(())
    }

    fn reserve_len(&self, len: u64) -> io::Result<u64> {
        let mut sim = self.sim.lock();
        sim.try_operation()?;
        let now = sim.files[self.id].len() as u64;
        let len = len.min(now + RESERVED).max(now);
        sim.files[self.id].resize(len as usize, 0);
        sim.log.push(SimOperation::SetLen(self.id, len));
        Ok(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sim = self.sim.lock();
        if !matches!(sim.fault, Some((_, SimFault::Full))) {
            sim.try_operation()?;
        }
        sim.files[self.id].resize(len as usize, 0);
        sim.log.push(SimOperation::SetLen(self.id, len));
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.sim.lock().files[self.id].len() as u64)
    }
}
