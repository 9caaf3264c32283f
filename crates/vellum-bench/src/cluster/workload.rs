//! What the hosts of a cluster bench do at once.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterWorkload {
    /// Small files are created, written and closed, in a directory of each thread.
    Create,
    /// The same in one directory of all.
    CreateOneDir,
    /// Empty files are created, in a directory of each thread.
    CreateEmpty,
    /// The same in one directory of all.
    CreateEmptyOneDir,
    /// Small files of the next host are opened, read and closed; nothing of them is in this host's page cache.
    ReadCold,
    /// The same once more.
    Read,
    /// Attributes of small files of the next host, which were asked for before.
    Stat,
    /// 7 small files are read for 3 that are created.
    Mix,
    /// A large file of each thread is written and flushed.
    BigWrite,
    /// A large file of the next host is read; nothing of it is in this host's page cache.
    BigRead,
    /// Records are appended to one file of all.
    Append,
    /// One thread of each host takes locks that the next host holds.
    Lock,
}

impl ClusterWorkload {
    /// All, in the order in which they run by default.
    pub const ALL: [Self; 12] = [
        // What makes files stands before what reads them.
        Self::Create,
        Self::CreateOneDir,
        Self::CreateEmpty,
        Self::CreateEmptyOneDir,
        Self::ReadCold,
        Self::Read,
        Self::Stat,
        Self::Mix,
        Self::BigWrite,
        Self::BigRead,
        Self::Append,
        Self::Lock,
    ];

    /// How it is called where it is chosen.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::CreateOneDir => "create-one-dir",
            Self::CreateEmpty => "create-empty",
            Self::CreateEmptyOneDir => "create-empty-one-dir",
            Self::ReadCold => "read-cold",
            Self::Read => "read",
            Self::Stat => "stat",
            Self::Mix => "mix",
            Self::BigWrite => "big-write",
            Self::BigRead => "big-read",
            Self::Append => "append",
            Self::Lock => "lock",
        }
    }

    /// Its row in the result.
    #[must_use]
    pub fn row_name(self) -> &'static str {
        match self {
            Self::Create => "small create",
            Self::CreateOneDir => "small create, one directory",
            Self::CreateEmpty => "empty create",
            Self::CreateEmptyOneDir => "empty create, one directory",
            Self::ReadCold => "small read, cold",
            Self::Read => "small read, warm",
            Self::Stat => "stat",
            Self::Mix => "small read 7 : create 3",
            Self::BigWrite => "big write, flushed",
            Self::BigRead => "big read, cold",
            Self::Append => "append",
            Self::Lock => "lock",
        }
    }

    /// The workload whose files it needs.
    pub(super) fn required_workload(self) -> Option<Self> {
        match self {
            Self::ReadCold | Self::Read | Self::Stat | Self::Mix => Some(Self::Create),
            Self::BigRead => Some(Self::BigWrite),
            Self::Create
            | Self::CreateOneDir
            | Self::CreateEmpty
            | Self::CreateEmptyOneDir
            | Self::BigWrite
            | Self::Append
            | Self::Lock => None,
        }
    }

    /// Whether its rate is one of bytes.
    #[must_use]
    pub fn is_measured_in_bytes(self) -> bool {
        matches!(self, Self::BigWrite | Self::BigRead)
    }
}

impl fmt::Display for ClusterWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ClusterWorkload {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|workload| workload.name() == typed);
        found.ok_or_else(|| format!("the workloads are {}", names()))
    }
}
