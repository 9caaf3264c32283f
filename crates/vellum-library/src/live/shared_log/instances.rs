//! The processes of a live state that may have claimed its shared log last.
//!
//! Lines of text: `current` or `pending`, a space, and the process's number in 32 hexadecimal digits. If the log was
//! claimed last by one that is current, the files of the live state are newer than the log, or equal. One that is pending
//! was about to make them from the log. Invariant: a number is written here before the log has it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use vellum_types::LookupResult;

use crate::live::{OpenError, Result, set_owner_from_ancestor};

const FILE: &str = "shared-log";
const TEMPORARY: &str = "shared-log.new";

/// Those processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogInstances {
    /// Those whose files are here.
    pub current: Vec<[u8; 16]>,
    /// Those that were about to make the files from the log.
    pub pending: Vec<[u8; 16]>,
}

impl LogInstances {
    /// One process whose files are here.
    pub fn current_only(number: [u8; 16]) -> Self {
        Self { current: vec![number], pending: Vec::new() }
    }

    /// One process that is about to make the files.
    pub fn pending_only(number: [u8; 16]) -> Self {
        Self { current: Vec::new(), pending: vec![number] }
    }
}

/// The file that holds them.
pub struct InstanceFile {
    dir: PathBuf,
}

impl InstanceFile {
    pub fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.into() }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Returns all processes; none if the worktree never had a shared log here.
    pub fn load_instances(&self) -> Result<LogInstances> {
        let path = self.path();
        let Some(text) =
            fs::read_to_string(&path).none_if_missing().map_err(OpenError::io_error("read", &path))?
        else {
            return Ok(LogInstances::default());
        };
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "it does not hold numbers of processes");
        let mut instances = LogInstances::default();
        // No line is passed over: without its number, a process would take its own files for old ones.
        for line in text.lines() {
            let parsed = parse_line(line).ok_or_else(broken);
            let (is_current, number) = parsed.map_err(OpenError::io_error("read", &path))?;
            let list = if is_current { &mut instances.current } else { &mut instances.pending };
            list.push(number);
        }
        Ok(instances)
    }

    /// Replaces them, durably.
    pub fn save_instances(&self, instances: &LogInstances) -> Result<()> {
        let path = self.path();
        let temporary = self.dir.join(TEMPORARY);
        let line = |kind: &str, number: &[u8; 16]| format!("{kind} {:032x}\n", u128::from_be_bytes(*number));
        let current = instances.current.iter().map(|number| line("current", number));
        let pending = instances.pending.iter().map(|number| line("pending", number));
        let text: String = current.chain(pending).collect();
        let write = || {
            let mut file = File::create(&temporary)?;
            set_owner_from_ancestor(&temporary)?;
            file.write_all(text.as_bytes())?;
            // Content before name: a crash must not leave an empty file under the name.
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(OpenError::io_error("write", &path))
    }
}

/// Whether the process is current, and its number.
fn parse_line(line: &str) -> Option<(bool, [u8; 16])> {
    let (kind, digits) = line.split_once(' ')?;
    // The parser of numbers takes a sign, which would be no digit.
    let is_number = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_number)?;
    match kind {
        "current" => Some((true, number.to_be_bytes())),
        "pending" => Some((false, number.to_be_bytes())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = InstanceFile::in_dir(dir.path());
        assert_eq!(file.load_instances().unwrap(), LogInstances::default());
        let instances = LogInstances { current: vec![[0; 16], [0xfe; 16]], pending: vec![[7; 16]] };
        file.save_instances(&instances).unwrap();
        assert_eq!(file.load_instances().unwrap(), instances);
        for broken in
            ["current", "current +0000000000000000000000000000001", "other 00000000000000000000000000000000"]
        {
            fs::write(file.path(), broken).unwrap();
            assert!(file.load_instances().is_err(), "{broken}");
        }
    }
}
