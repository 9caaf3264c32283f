//! Where this user's programs keep what they remember from run to run.

use std::path::PathBuf;

/// The directory for what Vellum remembers of runs; none if the environment names no place.
pub fn find_user_state_dir() -> Option<PathBuf> {
    // The XDG specification treats an empty variable as unset.
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("vellum"))
}
