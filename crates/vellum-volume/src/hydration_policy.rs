//! Hydration policies: what of a worktree's content is kept on this machine, fetched when it is read, or not fetched, by
//! path.
//!
//! Invariant: the longest path that has a policy decides, and a path for which none decides is fetched on demand. The
//! file belongs to one machine and is in no snapshot. Deliberately absent: what a mount does about them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vellum_types::DecodeError;

use crate::error::{Result, VolumeError};
use crate::state::StateDir;

/// Name of the file in the folder of a live state.
pub const HYDRATION_POLICIES_FILE: &str = "hydration-policies.json";
/// Version of the file.
const VERSION: u32 = 1;

/// When the content at and below a path comes to this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HydrationPolicy {
    /// At once; and it stays.
    Always,
    /// When it is read.
    OnDemand,
    /// When a user hydrates it; reading it does not fetch it.
    Never,
}

impl HydrationPolicy {
    /// Whether reading fetches nothing.
    #[must_use]
    pub fn is_never(self) -> bool {
        self == Self::Never
    }
}

impl fmt::Display for HydrationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::OnDemand => "on-demand",
            Self::Never => "never",
        })
    }
}

/// The policies of a worktree, by path from the root; the root is the empty path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HydrationPolicies {
    policies: BTreeMap<Vec<u8>, HydrationPolicy>,
}

/// The version of a file, whatever else it has.
#[derive(Deserialize)]
struct PolicyFileVersion {
    version: u32,
}

// An unknown field may restrict what is fetched: a reader that ignored it would fetch what must not be fetched.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    version: u32,
    policies: Vec<PolicyFileEntry>,
}

/// A path that is not UTF-8 is written as hexadecimal bytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFileEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    policy: HydrationPolicy,
}

impl HydrationPolicies {
    /// The policy of a path, and the path that has it; None if none decides.
    #[must_use]
    pub fn find_policy(&self, path: &[u8]) -> Option<(&[u8], HydrationPolicy)> {
        let mut at = path;
        loop {
            if let Some((found, policy)) = self.policies.get_key_value(at) {
                return Some((found.as_slice(), *policy));
            }
            at = parent_path(at)?;
        }
    }

    /// The policy that is set at this very path.
    #[must_use]
    pub fn policy_at(&self, path: &[u8]) -> Option<HydrationPolicy> {
        self.policies.get(path).copied()
    }

    /// Sets the policy of a path. "On demand" is what every path is: it is noted only where it differs from the path above.
    pub fn set_policy(&mut self, path: &[u8], policy: HydrationPolicy) {
        // First, so that the search below finds what holds above this path and not what held at it before.
        self.policies.remove(path);
        let above = self.find_policy(path).map_or(HydrationPolicy::OnDemand, |(_, policy)| policy);
        if policy != HydrationPolicy::OnDemand || above != HydrationPolicy::OnDemand {
            self.policies.insert(path.to_vec(), policy);
        }
    }

    /// All policies, by path.
    pub fn list_policies(&self) -> impl Iterator<Item = (&[u8], HydrationPolicy)> {
        self.policies.iter().map(|(path, policy)| (path.as_slice(), *policy))
    }

    /// The paths that have this policy themselves.
    #[must_use]
    pub fn list_paths_with(&self, wanted: HydrationPolicy) -> Vec<Vec<u8>> {
        let with = self.policies.iter().filter(|(_, policy)| **policy == wanted);
        with.map(|(path, _)| path.clone()).collect()
    }

    /// The paths below a path that have policies of their own.
    #[must_use]
    pub fn list_paths_below(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let is_below = |other: &&Vec<u8>| match other.strip_prefix(path) {
            Some(rest) => !rest.is_empty() && (path.is_empty() || rest.first() == Some(&b'/')),
            None => false,
        };
        self.policies.keys().filter(is_below).cloned().collect()
    }

    /// Reads the policies that are kept in a folder. A file that is damaged, or of a newer version, is an error: content
    /// that is never to be fetched must not be fetched because of it.
    pub fn load_from(folder: &Path) -> Result<Self> {
        let Some(text) = StateDir::for_folder(folder).read_file(HYDRATION_POLICIES_FILE)? else {
            return Ok(Self::default());
        };
        Self::decode(&text, &folder.join(HYDRATION_POLICIES_FILE))
    }

    /// Replaces the policies that are kept in a folder, atomically.
    pub fn store_in(&self, folder: &Path) -> Result<()> {
        let state = StateDir::for_folder(folder);
        if self.policies.is_empty() {
            return state.remove_file(HYDRATION_POLICIES_FILE);
        }
        state.write_json_file(HYDRATION_POLICIES_FILE, &self.to_file())
    }

    fn to_file(&self) -> PolicyFile {
        let entry = |(path, policy): (&Vec<u8>, &HydrationPolicy)| {
            let (path, path_hex) = match std::str::from_utf8(path) {
                Ok(text) => (Some(text.to_owned()), None),
                Err(_) => (None, Some(path.iter().map(|byte| format!("{byte:02x}")).collect())),
            };
            PolicyFileEntry { path, path_hex, policy: *policy }
        };
        PolicyFile { version: VERSION, policies: self.policies.iter().map(entry).collect() }
    }

    fn decode(text: &[u8], file: &Path) -> Result<Self> {
        let damaged = |reason: String| VolumeError::BadHydrationPolicies { file: file.into(), reason };
        // The version alone first: unknown fields of a newer version would be reported as damage.
        let PolicyFileVersion { version } =
            serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        if version != VERSION {
            let source = DecodeError::Version(version);
            return Err(VolumeError::Decode { what: file.display().to_string(), source });
        }
        let read: PolicyFile = serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        let mut policies = BTreeMap::new();
        for entry in read.policies {
            let path = entry.decode_path().ok_or_else(|| damaged("an entry has no valid path".into()))?;
            if policies.insert(path, entry.policy).is_some() {
                return Err(damaged("a path has two policies".into()));
            }
        }
        Ok(Self { policies })
    }
}

impl PolicyFileEntry {
    fn decode_path(&self) -> Option<Vec<u8>> {
        let path = match (&self.path, &self.path_hex) {
            (Some(text), None) => text.as_bytes().to_vec(),
            (None, Some(hex)) => decode_hex(hex)?,
            (Some(_), Some(_)) | (None, None) => return None,
        };
        let is_name = |name: &[u8]| !name.is_empty() && !matches!(name, b"." | b"..") && !name.contains(&0);
        (path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)).then_some(path)
    }
}

fn decode_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some((digit(high)? << 4) | digit(low)?),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
}

/// The path of the directory that a path lies in; None for the root.
fn parent_path(path: &[u8]) -> Option<&[u8]> {
    if path.is_empty() {
        return None;
    }
    let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    path.get(..slash)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn policies(set: &[(&str, HydrationPolicy)]) -> HydrationPolicies {
        let mut policies = HydrationPolicies::default();
        set.iter().for_each(|(path, policy)| policies.set_policy(path.as_bytes(), *policy));
        policies
    }

    #[test]
    fn the_longest_path_decides() {
        use HydrationPolicy::{Always, Never, OnDemand};
        let set = policies(&[("", Never), ("a", Always), ("a/b", Never), ("ab", OnDemand)]);
        let find = |path: &str| set.find_policy(path.as_bytes()).map(|(_, policy)| policy);
        assert_eq!(find("x/y"), Some(Never));
        assert_eq!(find("a/c"), Some(Always));
        assert_eq!(find("a/bc"), Some(Always));
        assert_eq!(find("a/b/c/d"), Some(Never));
        assert_eq!(find("ab/c"), Some(OnDemand));
        assert_eq!(set.list_paths_below(b"a"), [b"a/b".to_vec()]);
        assert_eq!(set.list_paths_below(b"").len(), 3);
        assert_eq!(policies(&[("a", Always)]).find_policy(b"b"), None);
    }

    #[test]
    fn on_demand_is_noted_only_where_it_differs() {
        use HydrationPolicy::{Always, Never, OnDemand};
        assert_eq!(policies(&[("a", Never), ("a", OnDemand)]), HydrationPolicies::default());
        let set = policies(&[("a", Always), ("a/b", OnDemand)]);
        assert_eq!(set.policy_at(b"a/b"), Some(OnDemand));
        assert_eq!(policies(&[("a", Always), ("a/b", Always)]).list_paths_with(Always).len(), 2);
    }

    #[test]
    fn what_was_stored_is_read_again_and_what_is_damaged_is_an_error() {
        use HydrationPolicy::{Always, Never};
        let dir = tempfile::tempdir().unwrap();
        let mut set = policies(&[("", Always), ("a/b", Never)]);
        set.set_policy(b"\xff/x", Never);
        set.store_in(dir.path()).unwrap();
        assert_eq!(HydrationPolicies::load_from(dir.path()).unwrap(), set);
        HydrationPolicies::default().store_in(dir.path()).unwrap();
        assert_eq!(HydrationPolicies::load_from(dir.path()).unwrap(), HydrationPolicies::default());
        let entry = |entry: &str| format!(r#"{{"version":1,"policies":[{entry}]}}"#);
        for text in [
            "".to_owned(),
            "{}".to_owned(),
            entry(r#"{"path":"a","policy":"sometimes"}"#),
            entry(r#"{"path":"a","policy":"never","more":1}"#),
            entry(r#"{"policy":"never"}"#),
            entry(r#"{"path":"a/../b","policy":"never"}"#),
            entry(r#"{"path":"/a","policy":"never"}"#),
            entry(r#"{"path_hex":"f","policy":"never"}"#),
            entry(r#"{"path":"a","policy":"never"},{"path":"a","policy":"always"}"#),
            r#"{"version":1,"policies":[],"more":1}"#.to_owned(),
        ] {
            std::fs::write(dir.path().join(HYDRATION_POLICIES_FILE), &text).unwrap();
            let error = HydrationPolicies::load_from(dir.path()).unwrap_err();
            assert!(matches!(error, VolumeError::BadHydrationPolicies { .. }), "{text}: {error}");
        }
        std::fs::write(dir.path().join(HYDRATION_POLICIES_FILE), r#"{"version":2,"rules":[]}"#).unwrap();
        let error = HydrationPolicies::load_from(dir.path()).unwrap_err();
        assert!(matches!(error, VolumeError::Decode { source: DecodeError::Version(2), .. }), "{error}");
    }
}
