//! What `-o` asks for, of `vellum mount` and of `mount.vellum`: the options of mount(8) and fstab(5).
//!
//! Invariant: an option is obeyed, or has no meaning for a mount of a volume, or is refused: a typing error in fstab must not
//! mount something else than was meant.

use std::path::PathBuf;
use std::time::Duration;

use super::Args;
use crate::error::{CliError, Result};
use crate::ui::format;

/// One of the options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountOption {
    /// `ro` and `rw`.
    ReadOnly(bool),
    /// `worktree=NAME`.
    Worktree(String),
    /// `snapshot=SNAP`.
    Snapshot(String),
    /// `allow_other`.
    AllowOther,
    /// `noexec`, also as a part of `user` and `users`.
    NoExec(bool),
    /// `noatime`, and `atime`.
    NoAccessTimes(bool),
    /// `nofail`.
    NoFail,
    /// `timeout=TIME`.
    Deadline(Duration),
    /// `rpo=TIME`.
    Rpo(Duration),
    /// `key-file=FILE`.
    KeyFile(PathBuf),
    /// Addressed to mount(8), to systemd or to people, or what every mount of a volume is.
    Ignored,
}

/// What every mount is, or what others act upon.
const IGNORED: [&str; 16] = [
    "",
    "defaults",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "_netdev",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "async",
    "norelatime",
];

impl MountOption {
    /// One option as typed between commas; None if there is none of this name.
    pub fn recognize(typed: &str) -> Result<Option<Self>, String> {
        let (name, value) = typed.split_once('=').map_or((typed, None), |(name, value)| (name, Some(value)));
        let option = match (name, value) {
            ("ro", None) => Self::ReadOnly(true),
            ("rw", None) => Self::ReadOnly(false),
            ("worktree", Some(worktree)) => Self::Worktree(worktree.into()),
            ("snapshot", Some(snapshot)) => Self::Snapshot(snapshot.into()),
            ("allow_other", None) => Self::AllowOther,
            ("noexec", None) => Self::NoExec(true),
            ("exec", None) => Self::NoExec(false),
            ("noatime", None) => Self::NoAccessTimes(true),
            ("atime" | "relatime", None) => Self::NoAccessTimes(false),
            ("nofail", None) => Self::NoFail,
            ("timeout", Some(time)) => Self::Deadline(format::parse_duration(time)?),
            ("rpo", Some(time)) => Self::Rpo(parse_interval(time)?),
            ("key-file", Some(file)) if !file.is_empty() => Self::KeyFile(file.into()),
            ("comment", Some(_)) => Self::Ignored,
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => Self::Ignored,
            (name, None) if IGNORED.contains(&name) => Self::Ignored,
            _ => return Ok(None),
        };
        Ok(Some(option))
    }

    /// The same, for whom an unknown option is an error.
    pub fn parse(typed: &str) -> Result<Self, String> {
        Self::recognize(typed)?.ok_or_else(|| {
            "the options are ro, rw, worktree=NAME, snapshot=SNAP, allow_other, noexec, noatime, nofail, \
             timeout=TIME, rpo=TIME and key-file=FILE"
                .into()
        })
    }
}

/// A time that passes.
pub fn parse_interval(typed: &str) -> Result<Duration, String> {
    let interval = format::parse_duration(typed)?;
    if interval.is_zero() { Err("it is at least 1s".into()) } else { Ok(interval) }
}

impl Args {
    /// The arguments with what `-o` asks for among them.
    pub(super) fn apply_options(&self) -> Result<Self> {
        let mut args = self.clone();
        let mut is_read_only = false;
        for option in &self.options {
            match option {
                // The last one counts, as with every filesystem.
                MountOption::ReadOnly(set) => is_read_only = *set,
                MountOption::Worktree(name) => set_once(&mut args.worktree, name, "worktree")?,
                MountOption::Snapshot(name) => set_once(&mut args.snapshot, name, "snapshot")?,
                MountOption::AllowOther => args.allow_other = true,
                MountOption::Rpo(time) => args.rpo = Some(*time),
                MountOption::KeyFile(file) => args.key_file = Some(file.clone()),
                // Read from the options when they are needed, where the last one of each kind counts.
                MountOption::NoExec(_)
                | MountOption::NoAccessTimes(_)
                | MountOption::NoFail
                | MountOption::Deadline(_)
                | MountOption::Ignored => {}
            }
        }
        args.read_only |= is_read_only;
        args.check_contradictions()?;
        args.check_sharing()?;
        Ok(args)
    }

    /// What the parser checks for options of the command line, with `-o` in mind.
    fn check_contradictions(&self) -> Result<()> {
        let is_snapshot = self.snapshot.is_some();
        let contradictions = [
            (is_snapshot && self.worktree.is_some(), "a worktree and a snapshot", "leave out either of them"),
            (is_snapshot && self.temporary, "a snapshot and --temporary", "leave out --temporary"),
            (is_snapshot && self.take_over, "a snapshot and --take-over", "leave out --take-over"),
            (self.follow && (is_snapshot || self.read_only), "--follow and 'ro'", "leave out --follow"),
            (
                self.snapshot_every.is_some() && (is_snapshot || self.read_only),
                "--snapshot-every and 'ro'",
                "leave out --snapshot-every",
            ),
            (
                self.keeps_access_times() && self.sharing.shared.is_some(),
                "--shared and 'noatime'",
                "leave out 'noatime': the server keeps access times for all machines",
            ),
            (
                self.foreground && (self.is_optional() || self.deadline().is_some()),
                "--foreground and 'nofail' or 'timeout'",
                "leave out --foreground: the command then returns when the mount is ready",
            ),
        ];
        match contradictions.into_iter().find(|(is_so, _, _)| *is_so) {
            Some((_, both, hint)) => {
                Err(CliError::usage_error(format!("{both} cannot be asked for together"), hint))
            }
            None => Ok(()),
        }
    }

    /// Whether it is no failure if the store is away.
    pub(super) fn is_optional(&self) -> bool {
        self.options.contains(&MountOption::NoFail)
    }

    /// Within which time the mount has to be ready.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.options.iter().rev().find_map(|option| match option {
            MountOption::Deadline(time) => Some(*time),
            _ => None,
        })
    }

    /// Whether reading changes no access times.
    pub(super) fn keeps_access_times(&self) -> bool {
        let last = self.options.iter().rev().find_map(|option| match option {
            MountOption::NoAccessTimes(set) => Some(*set),
            _ => None,
        });
        last.unwrap_or(false)
    }

    /// Whether no program may be executed from the mount.
    pub(super) fn is_no_exec(&self) -> bool {
        let last = self.options.iter().rev().find_map(|option| match option {
            MountOption::NoExec(set) => Some(*set),
            _ => None,
        });
        last.unwrap_or(false)
    }
}

fn set_once(place: &mut Option<String>, name: &str, what: &str) -> Result<()> {
    match place.replace(name.into()) {
        // The same name twice is no contradiction: `--worktree` and `-o worktree=` may both be typed.
        Some(before) if before != name => {
            let message = format!("two of kind {what} are to be mounted: '{before}' and '{name}'");
            Err(CliError::usage_error(message, "name one of them"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fstab_has_for_others_is_no_concern_of_ours() {
        for option in
            "defaults,_netdev,noauto,user,users,owner,rw,suid,dev,exec,auto,nouser,async,nodev,nosuid,\
                       x-systemd.mount-timeout=5,X-mount.mkdir,comment=mine,nofail,"
                .split(',')
        {
            assert!(MountOption::parse(option).is_ok(), "{option}");
        }
    }

    #[test]
    fn what_is_mistyped_is_refused() {
        for option in [
            "read-only",
            "worktree",
            "ro=1",
            "timeout=30",
            "timeout",
            "nofail=1",
            "defaults=1",
            "key",
            "sync",
            "uid=1",
            "comment",
            "key-file",
            "key-file=",
            " ro",
        ] {
            assert!(MountOption::parse(option).is_err(), "{option}");
        }
    }

    #[test]
    fn values_are_taken_as_they_are() {
        assert_eq!(MountOption::parse("worktree=a=b"), Ok(MountOption::Worktree("a=b".into())));
        assert_eq!(MountOption::parse("timeout=2m"), Ok(MountOption::Deadline(Duration::from_secs(120))));
    }
}
