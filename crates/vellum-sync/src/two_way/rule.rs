//! Who wins when both sides changed the same entry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_types::Time;

use super::Which;

/// What is done about entries that both sides changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The later change wins; the other version goes to the trash.
    Newer,
    /// The larger file wins; the other version goes to the trash.
    Larger,
    /// The first side wins; the other version goes to the trash.
    Source,
    /// The second side wins; the other version goes to the trash.
    Dest,
    /// The later change keeps the name, the other version gets another one, on both sides.
    #[default]
    KeepBoth,
    /// Somebody is asked; what was not answered stays as it is on both sides.
    Ask,
}

/// What somebody answered about one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// This side wins.
    Side(Which),
    /// Both versions are kept.
    Both,
}

/// Answers, by path.
pub type Answers = BTreeMap<Vec<u8>, Answer>;

/// How a conflict ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// This side's version goes to the other side, where the other version goes to the trash.
    Wins(Which),
    /// This side's version gets another name, and both versions go to both sides.
    Renamed(Which),
    /// Both sides stay as they are.
    Open,
}

/// What a rule looks at in one side's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// Last change; of a directory the last in all that is in it.
    pub changed: Time,
    /// Bytes, with all that is in it.
    pub bytes: u64,
    /// It is a directory: renaming it would drag along what nobody disagrees on.
    pub is_dir: bool,
}

impl Rule {
    /// The ending of a conflict of two versions.
    pub(super) fn ending(self, versions: [Version; 2], answer: Option<Answer>) -> Ending {
        let [a, b] = versions;
        let newer = greater(a.changed, b.changed);
        let larger = greater(a.bytes, b.bytes);
        let kept = || Ending::Renamed(loser_of_both(versions));
        match self {
            Self::Source => Ending::Wins(Which::First),
            Self::Dest => Ending::Wins(Which::Second),
            // Without a difference to go by, the rule has nothing to say: then nothing is thrown away.
            Self::Newer => newer.map_or_else(kept, Ending::Wins),
            Self::Larger => larger.or(newer).map_or_else(kept, Ending::Wins),
            Self::KeepBoth => kept(),
            Self::Ask => match answer {
                Some(Answer::Side(which)) => Ending::Wins(which),
                Some(Answer::Both) => kept(),
                None => Ending::Open,
            },
        }
    }

    /// Which side's attributes win, where content is the same.
    pub(super) fn attributes(self, versions: [Version; 2]) -> Which {
        match self {
            Self::Source => Which::First,
            Self::Dest => Which::Second,
            Self::Newer | Self::Larger | Self::KeepBoth | Self::Ask => {
                greater(versions[0].changed, versions[1].changed).unwrap_or(Which::First)
            }
        }
    }

    /// The side whose will is done even if it deleted what the other side edited.
    pub(super) fn stubborn(self) -> Option<Which> {
        match self {
            Self::Source => Some(Which::First),
            Self::Dest => Some(Which::Second),
            Self::Newer | Self::Larger | Self::KeepBoth | Self::Ask => None,
        }
    }
}

fn greater<T: Ord>(a: T, b: T) -> Option<Which> {
    match a.cmp(&b) {
        std::cmp::Ordering::Greater => Some(Which::First),
        std::cmp::Ordering::Less => Some(Which::Second),
        std::cmp::Ordering::Equal => None,
    }
}

/// Which version gets another name: not a directory, else the older one, else the second.
fn loser_of_both(versions: [Version; 2]) -> Which {
    match versions.map(|version| version.is_dir) {
        [true, false] => Which::Second,
        [false, true] => Which::First,
        _ => greater(versions[0].changed, versions[1].changed).map_or(Which::Second, Which::other),
    }
}
