//! The host, the user, and processes, which are identified even if their numbers are reused.

#![expect(clippy::disallowed_methods, reason = "the kernel's own files, which nobody can replace")]

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::owner_names::{OwnerTable, read_owner_names};

/// Returns the names of the program that a thread executes, as far as the kernel keeps them (15 bytes): that of the thread,
/// and that of its process. Empty if there is no such thread, or none that this process may see.
#[must_use]
pub fn read_program_names(thread: u32) -> Vec<Vec<u8>> {
    let read_name = |number: u32| {
        let mut name = std::fs::read(format!("/proc/{number}/comm")).ok()?;
        // The kernel ends it with a line feed.
        name.pop();
        Some(name)
    };
    let Some(own) = read_name(thread) else { return Vec::new() };
    let mut names = vec![own];
    // The first thread of a process has its number, and was asked already.
    if let Some(process) = find_process_of_thread(thread).filter(|process| *process != thread) {
        names.extend(read_name(process));
    }
    names
}

/// Returns the process to which a thread belongs. None if there is no such thread, or none that this process may see.
#[must_use]
pub fn find_process_of_thread(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Returns the time since the boot in the ticks in which the kernel tells when processes started.
#[must_use]
pub fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    // This clock begins at zero and never goes back.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * ticks + nanoseconds * ticks / 1_000_000_000
}

/// Returns this machine's name.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the identity of the scope of process numbers: this boot, and this PID namespace.
#[must_use]
pub fn process_scope() -> String {
    // Numbers begin anew with each boot, and each PID namespace has its own.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// The kernel's record of a process or a thread, `/proc/PID/stat`.
#[derive(Debug, Clone)]
pub struct ProcessStat {
    text: Vec<u8>,
}

impl ProcessStat {
    /// Reads it by the number of the process or thread.
    pub fn read(number: u32) -> io::Result<Self> {
        Ok(Self { text: std::fs::read(format!("/proc/{number}/stat"))? })
    }

    /// Reads that of this process.
    pub fn read_own() -> io::Result<Self> {
        Ok(Self { text: std::fs::read("/proc/self/stat")? })
    }

    /// A field by its number in proc(5), from 3 on: the second one is a name with arbitrary bytes.
    fn field(&self, number: usize) -> Option<&str> {
        // The second field is the name of the program in parentheses, which can contain spaces and
        // parentheses. The last closing one ends it.
        let behind_name = self.text.rsplit(|byte| *byte == b')').next()?;
        std::str::from_utf8(behind_name).ok()?.split_ascii_whitespace().nth(number.checked_sub(3)?)
    }

    fn number(&self, number: usize) -> Option<u64> {
        self.field(number)?.parse().ok()
    }

    /// Whether it has exited, even if it is a zombie.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.field(3), Some("Z" | "X") | None)
    }

    /// Whether it is stopped, as by SIGSTOP or a debugger.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        matches!(self.field(3), Some("T" | "t"))
    }

    /// Whether it has exited, or is exiting.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        /// `PF_EXITING`.
        const EXITING: u64 = 4;
        self.has_ended() || self.number(9).unwrap_or(0) & EXITING != 0
    }

    /// Processor time of all its threads, in ticks (`_SC_CLK_TCK` of sysconf(3)).
    #[must_use]
    pub fn processor_ticks(&self) -> u64 {
        self.number(14).unwrap_or(0) + self.number(15).unwrap_or(0)
    }

    /// The start time, in ticks since the boot; 0 if it has exited.
    #[must_use]
    pub fn start_ticks(&self) -> u64 {
        // A zombie keeps its number and its start until its parent has taken note of its end.
        if self.has_ended() { 0 } else { self.number(22).unwrap_or(0) }
    }

    /// Its resident memory, in pages.
    #[must_use]
    pub fn resident_pages(&self) -> u64 {
        self.number(24).unwrap_or(0)
    }

    /// The processor on which it runs, or ran last.
    #[must_use]
    pub fn processor(&self) -> Option<usize> {
        self.field(39)?.parse().ok()
    }
}

/// Returns the start of a process or thread in ticks since boot; 0 if it does not exist, or is a zombie.
#[must_use]
pub fn read_process_start(pid: u32) -> u64 {
    ProcessStat::read(pid).map_or(0, |stat| stat.start_ticks())
}

/// Returns which of these paths, and what below them, some process has open. The files themselves are not asked. Those of
/// processes that this user may not look into are not found.
#[must_use]
pub fn find_open_paths(wanted: &[PathBuf]) -> BTreeSet<PathBuf> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let opened =
        processes.flat_map(|process| std::fs::read_dir(process.path().join("fd")).into_iter().flatten());
    let targets = opened.flatten().filter_map(|opened| std::fs::read_link(opened.path()).ok());
    targets.filter(|target| wanted.iter().any(|path| target.starts_with(path))).collect()
}

/// What the user is called in this process, if not as the environment says.
static USER_NAME: OnceLock<String> = OnceLock::new();
/// The name that the table of users has.
static ACCOUNT_NAME: OnceLock<String> = OnceLock::new();

/// Sets what the user is called in this process. Only the first call counts.
pub fn set_user_name(name: String) {
    USER_NAME.get_or_init(|| name);
}

/// Returns the user's name: as it was set, or as the environment or the machine's table of users has it.
#[must_use]
pub fn user_name() -> String {
    if let Some(name) = USER_NAME.get() {
        return name.clone();
    }
    // Some systems set only one of them, such as LOGNAME for jobs of cron.
    ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        // Each snapshot of a mount asks, and the table is read from the disk.
        .unwrap_or_else(|| ACCOUNT_NAME.get_or_init(read_account_name).clone())
}

fn read_account_name() -> String {
    let uid = rustix::process::getuid().as_raw();
    let mut names = read_owner_names(OwnerTable::Users);
    names.remove(&uid).unwrap_or_else(|| format!("uid {uid}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn fields_are_counted_from_behind_a_name_that_looks_like_fields() {
        let text = b"7 (a) Z (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22".to_vec();
        let stat = ProcessStat { text };
        assert!(!stat.has_ended() && stat.is_exiting());
        assert_eq!((stat.processor_ticks(), stat.start_ticks(), stat.resident_pages()), (11 + 12, 19, 21));
        assert_eq!(stat.processor(), None);
        assert!(ProcessStat { text: Vec::new() }.has_ended());
    }

    #[test]
    fn who_is_about_to_end_is_told_by_flags() {
        for (text, is_exiting) in [
            ("12 (a) b) (c) S 1 12 12 0 -1 4194304 0", false),
            ("12 (a) b) (c) S 1 12 12 0 -1 4194308 0", true),
            ("12 (a) Z 1 12 12 0 -1 4194304 0", true),
            ("12", false),
        ] {
            assert_eq!(ProcessStat { text: text.into() }.is_exiting(), is_exiting, "{text}");
        }
        let stopped = |text: &str| ProcessStat { text: text.into() }.is_stopped();
        assert!(stopped("12 (a) T 1 12") && !stopped("12 (T) S 1 12"));
    }

    #[test]
    fn what_is_open_is_found_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let open = dir.join("open");
        let closed = dir.join("closed");
        std::fs::write(&closed, "").unwrap();
        let file = std::fs::File::create(&open).unwrap();
        assert_eq!(find_open_paths(&[open.clone(), closed.clone()]), [open.clone()].into());
        assert_eq!(find_open_paths(&[dir]), [open].into());
        drop(file);
        assert!(find_open_paths(&[closed]).is_empty());
    }

    #[test]
    fn this_process_runs_on_a_processor_and_has_memory() {
        let stat = ProcessStat::read(std::process::id()).unwrap();
        assert!(!stat.is_exiting() && stat.start_ticks() > 0 && stat.resident_pages() > 0);
        assert!(stat.processor().is_some());
        assert_eq!(read_process_start(std::process::id()), stat.start_ticks());
        assert_eq!(read_process_start(u32::MAX), 0);
    }
}
