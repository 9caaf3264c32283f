//! A folder in memory that remembers every operation: what a crash leaves can be made from any moment of it.
//!
//! Rules of a loss of power: what was written to a file before its last sync is there; what was written later is
//! there, or not, or in part, or is garbage, each write for itself. Names are as they were at the last sync of the
//! folder; of later changes any may be there.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::Random;
use crate::embedded::folder::{File, Folder};

/// Bytes that a file is lengthened by at most when room is reserved.
const RESERVED: u64 = 700;
/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Something that was done.
#[derive(Debug, Clone)]
enum Op {
    /// Names that change together: each with the file that it now names, if any.
    Names(Vec<(String, Option<usize>)>),
    Write(usize, u64, Vec<u8>),
    SetLen(usize, u64),
    SyncFile(usize),
    SyncFolder,
}

/// How an operation goes wrong.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// No space: half of what was to be written is.
    Full,
    /// An error of the disk.
    Broken,
}

/// How much of what was not synced survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
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

pub const LOSSES: [Loss; 5] = [Loss::Nothing, Loss::Everything, Loss::Bytes, Loss::Names, Loss::Some];

#[derive(Default)]
struct Sim {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
    log: Vec<Op>,
    /// What stood there at the start, durable.
    first: (BTreeMap<String, usize>, Vec<Vec<u8>>),
    /// Operations that go well before one does not.
    fault: Option<(usize, Fault)>,
    /// Whether everything after the fault goes wrong, too.
    lasting: bool,
}

#[derive(Default)]
pub struct SimFolder(Arc<Mutex<Sim>>);

struct SimFile {
    folder: Arc<Mutex<Sim>>,
    id: usize,
}

impl SimFolder {
    /// A folder with durable files.
    pub fn with(files: BTreeMap<String, Vec<u8>>) -> Arc<Self> {
        let mut sim = Sim::default();
        for (name, bytes) in files {
            sim.names.insert(name, sim.files.len());
            sim.files.push(bytes);
        }
        sim.first = (sim.names.clone(), sim.files.clone());
        Arc::new(Self(Arc::new(Mutex::new(sim))))
    }

    /// How much was done so far.
    pub fn ops(&self) -> usize {
        self.0.lock().unwrap().log.len()
    }

    /// After `after` more operations one fails; all of them from then on, if it lasts.
    pub fn fail(&self, after: usize, fault: Fault, lasting: bool) {
        let mut sim = self.0.lock().unwrap();
        sim.fault = Some((after, fault));
        sim.lasting = lasting;
    }

    /// From now on nothing fails. Tells whether something did.
    pub fn heal(&self) -> bool {
        self.0.lock().unwrap().fault.take().is_none_or(|(left, _)| left == 0)
    }

    /// The files as they are.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let sim = self.0.lock().unwrap();
        sim.names.iter().map(|(name, id)| (name.clone(), sim.files[*id].clone())).collect()
    }

    /// The folder as a process finds it that comes after one which was killed after `ops` operations: what was not
    /// synced can still be lost.
    pub fn killed(&self, ops: usize) -> Arc<Self> {
        let files = self.crash(ops, Loss::Nothing, &mut Random(1));
        let sim = self.0.lock().unwrap();
        let (mut names, all) = sim.first.clone();
        for op in &sim.log[..ops] {
            if let Op::Names(changed) = op {
                rename(&mut names, changed);
            }
        }
        let mut killed =
            Sim { files: all, log: sim.log[..ops].to_vec(), first: sim.first.clone(), ..Sim::default() };
        killed.files.resize(sim.files.len(), Vec::new());
        for (name, id) in &names {
            killed.files[*id].clone_from(&files[name]);
        }
        killed.names = names;
        Arc::new(Self(Arc::new(Mutex::new(killed))))
    }

    /// What a crash after the first `ops` operations may leave.
    pub fn crash(&self, ops: usize, loss: Loss, random: &mut Random) -> BTreeMap<String, Vec<u8>> {
        let sim = self.0.lock().unwrap();
        let log = &sim.log[..ops];
        let (mut names, mut files) = sim.first.clone();
        files.resize(sim.files.len(), Vec::new());
        let folder_synced = log.iter().rposition(|op| matches!(op, Op::SyncFolder));
        for (at, op) in log.iter().enumerate() {
            let synced_later =
                |id: usize| log[at..].iter().any(|op| matches!(op, Op::SyncFile(synced) if *synced == id));
            match op {
                Op::Names(changed) => {
                    let is_there = folder_synced.is_some_and(|synced| at < synced)
                        || match loss {
                            Loss::Nothing | Loss::Bytes => true,
                            Loss::Everything => false,
                            Loss::Names | Loss::Some => random.below(2) == 0,
                        };
                    if is_there {
                        rename(&mut names, changed);
                    }
                }
                Op::Write(id, offset, bytes) if synced_later(*id) => write(&mut files[*id], *offset, bytes),
                Op::Write(id, offset, bytes) => lose(&mut files[*id], *offset, bytes, loss, random),
                Op::SetLen(id, len) => {
                    let is_lost = match loss {
                        Loss::Nothing | Loss::Names => false,
                        Loss::Everything => true,
                        Loss::Bytes | Loss::Some => random.below(2) == 0,
                    };
                    if synced_later(*id) || !is_lost {
                        files[*id].resize(*len as usize, 0);
                    }
                }
                Op::SyncFile(_) | Op::SyncFolder => {}
            }
        }
        names.into_iter().map(|(name, id)| (name, files[id].clone())).collect()
    }
}

/// A write that was not synced.
fn lose(file: &mut Vec<u8>, offset: u64, bytes: &[u8], loss: Loss, random: &mut Random) {
    match loss {
        Loss::Nothing | Loss::Names => write(file, offset, bytes),
        Loss::Everything => {}
        Loss::Bytes | Loss::Some => match random.below(5) {
            0 => write(file, offset, bytes),
            1 => {}
            2 => write(file, offset, &bytes[..random.below(bytes.len() as u64 + 1) as usize]),
            3 => {
                let garbage: Vec<u8> = bytes.iter().map(|_| random.next() as u8).collect();
                write(file, offset, &garbage);
            }
            _ => {
                for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                    if random.below(2) == 0 {
                        write(file, offset + (number * SECTOR) as u64, sector);
                    }
                }
            }
        },
    }
}

fn rename(names: &mut BTreeMap<String, usize>, changed: &[(String, Option<usize>)]) {
    for (name, id) in changed {
        match id {
            Some(id) => names.insert(name.clone(), *id),
            None => names.remove(name),
        };
    }
}

fn write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(bytes);
}

impl Sim {
    /// Whether the next operation goes wrong, and how.
    fn next_fault(&mut self) -> Option<Fault> {
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

    fn attempt(&mut self) -> io::Result<()> {
        self.next_fault().map_or(Ok(()), |fault| Err(error(fault)))
    }

    fn rename(&mut self, changed: Vec<(String, Option<usize>)>) {
        rename(&mut self.names, &changed);
        self.log.push(Op::Names(changed));
    }
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Full => ErrorKind::StorageFull.into(),
        Fault::Broken => io::Error::from_raw_os_error(5),
    }
}

impl Folder for SimFolder {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut sim = self.0.lock().unwrap();
        sim.attempt()?;
        let id = match sim.names.get(name).copied() {
            Some(id) => {
                sim.files[id].clear();
                sim.log.push(Op::SetLen(id, 0));
                id
            }
            None => {
                let id = sim.files.len();
                sim.files.push(Vec::new());
                sim.rename(vec![(name.into(), Some(id))]);
                id
            }
        };
        Ok(Arc::new(SimFile { folder: Arc::clone(&self.0), id }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let sim = self.0.lock().unwrap();
        let id = *sim.names.get(name).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { folder: Arc::clone(&self.0), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut sim = self.0.lock().unwrap();
        sim.attempt()?;
        let id = *sim.names.get(from).ok_or(ErrorKind::NotFound)?;
        sim.rename(vec![(from.into(), None), (to.into(), Some(id))]);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut sim = self.0.lock().unwrap();
        if sim.names.contains_key(name) {
            sim.attempt()?;
            sim.rename(vec![(name.into(), None)]);
        }
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().names.keys().cloned().collect())
    }

    fn sync(&self) -> io::Result<()> {
        let mut sim = self.0.lock().unwrap();
        sim.attempt()?;
        sim.log.push(Op::SyncFolder);
        Ok(())
    }

    fn describe(&self, name: &str) -> String {
        name.into()
    }

    fn directory(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let sim = self.folder.lock().unwrap();
        let bytes = sim.files[self.id].get(offset as usize..).unwrap_or_default();
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut sim = self.folder.lock().unwrap();
        let fault = sim.next_fault();
        let bytes = if fault.is_some() { &bytes[..bytes.len() / 2] } else { bytes };
        write(&mut sim.files[self.id], offset, bytes);
        sim.log.push(Op::Write(self.id, offset, bytes.to_vec()));
        fault.map_or(Ok(()), |fault| Err(error(fault)))
    }

    fn sync(&self) -> io::Result<()> {
        let mut sim = self.folder.lock().unwrap();
        sim.attempt()?;
        sim.log.push(Op::SyncFile(self.id));
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<u64> {
        let mut sim = self.folder.lock().unwrap();
        sim.attempt()?;
        let now = sim.files[self.id].len() as u64;
        let len = len.min(now + RESERVED).max(now);
        sim.files[self.id].resize(len as usize, 0);
        sim.log.push(Op::SetLen(self.id, len));
        Ok(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sim = self.folder.lock().unwrap();
        if !matches!(sim.fault, Some((_, Fault::Full))) {
            sim.attempt()?;
        }
        sim.files[self.id].resize(len as usize, 0);
        sim.log.push(Op::SetLen(self.id, len));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.folder.lock().unwrap().files[self.id].len() as u64)
    }
}
