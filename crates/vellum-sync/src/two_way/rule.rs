//! Rules that resolve conflicts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vellum_types::UnixTime;

use super::TwoWaySide;

/// What happens to entries that changed on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictRule {
    /// The later change wins; the other version goes to the trash.
    Newer,
    /// The larger file wins; the other version goes to the trash.
    Larger,
    /// The first side wins; the other version goes to the trash.
    Source,
    /// The second side wins; the other version goes to the trash.
    Dest,
    /// The later change keeps the name; the other version gets another name. Both versions are copied to both sides.
    #[default]
    KeepBoth,
    /// The user decides; a conflict without an answer leaves both sides as they are.
    Ask,
}

/// The answer to one conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictAnswer {
    /// This side wins.
    Side(TwoWaySide),
    /// Both versions are kept.
    Both,
}

/// Answers by path.
pub type ConflictAnswers = BTreeMap<Vec<u8>, ConflictAnswer>;

/// How a conflict is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictEnding {
    /// This side's version replaces the other one, which goes to the trash.
    Wins(TwoWaySide),
    /// This side's version gets another name, and both versions are copied to both sides.
    Renamed(TwoWaySide),
    /// Both sides stay as they are.
    Open,
}

/// The facts of one side's version that rules compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ComparedVersion {
    /// Its modification time; of a directory the latest in its subtree.
    pub changed: UnixTime,
    /// Its size in bytes; of a directory the sum of its subtree.
    pub bytes: u64,
    /// It is a directory: renaming it would also rename entries without a conflict.
    pub is_dir: bool,
}

impl ConflictRule {
    /// How a conflict of two versions is resolved.
    pub(super) fn choose_ending(
        self,
        versions: [ComparedVersion; 2],
        answer: Option<ConflictAnswer>,
    ) -> ConflictEnding {
        let [a, b] = versions;
        let newer = greater_side(a.changed, b.changed);
        let larger = greater_side(a.bytes, b.bytes);
        let kept = || ConflictEnding::Renamed(choose_loser(versions));
        match self {
            Self::Source => ConflictEnding::Wins(TwoWaySide::First),
            Self::Dest => ConflictEnding::Wins(TwoWaySide::Second),
            // Without a difference in time the rule does not decide. Then both versions are kept.
            Self::Newer => newer.map_or_else(kept, ConflictEnding::Wins),
            // Versions of equal size are compared by time before both are kept.
            Self::Larger => larger.or(newer).map_or_else(kept, ConflictEnding::Wins),
            Self::KeepBoth => kept(),
            Self::Ask => match answer {
                Some(ConflictAnswer::Side(which)) => ConflictEnding::Wins(which),
                Some(ConflictAnswer::Both) => kept(),
                None => ConflictEnding::Open,
            },
        }
    }

    /// The side whose attributes win where the content is the same.
    pub(super) fn choose_attributes(self, versions: [ComparedVersion; 2]) -> TwoWaySide {
        match self {
            Self::Source => TwoWaySide::First,
            Self::Dest => TwoWaySide::Second,
            Self::Newer | Self::Larger | Self::KeepBoth | Self::Ask => {
                // The content is equal, so no version can be lost; the first side wins where times are equal,
                // and the result is the same in each run.
                greater_side(versions[0].changed, versions[1].changed).unwrap_or(TwoWaySide::First)
            }
        }
    }

    /// The side that wins even if it deleted the entry that the other side edited.
    pub(super) fn preferred_side(self) -> Option<TwoWaySide> {
        match self {
            Self::Source => Some(TwoWaySide::First),
            Self::Dest => Some(TwoWaySide::Second),
            Self::Newer | Self::Larger | Self::KeepBoth | Self::Ask => None,
        }
    }
}

fn greater_side<T: Ord>(a: T, b: T) -> Option<TwoWaySide> {
    match a.cmp(&b) {
        std::cmp::Ordering::Greater => Some(TwoWaySide::First),
        std::cmp::Ordering::Less => Some(TwoWaySide::Second),
        std::cmp::Ordering::Equal => None,
    }
}

/// The version that gets another name: not a directory, else the older one, else the second.
fn choose_loser(versions: [ComparedVersion; 2]) -> TwoWaySide {
    match versions.map(|version| version.is_dir) {
        [true, false] => TwoWaySide::Second,
        [false, true] => TwoWaySide::First,
        _ => greater_side(versions[0].changed, versions[1].changed)
            .map_or(TwoWaySide::Second, TwoWaySide::opposite),
    }
}
