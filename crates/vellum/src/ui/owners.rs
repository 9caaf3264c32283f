//! Owners as people read them: by the names that their numbers have on this machine. JSON has the numbers, because a snapshot
//! may have been made where these have other names.

use std::collections::BTreeMap;

use vellum_host::escape::format_path;
use vellum_host::owner_names::{OwnerTable, read_owner_names};

/// The names of this machine's users and groups.
pub struct NamedOwners {
    users: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl NamedOwners {
    /// Reads them.
    pub fn read() -> Self {
        Self { users: read_owner_names(OwnerTable::Users), groups: read_owner_names(OwnerTable::Groups) }
    }

    /// The name of a user, or its number if it has none.
    pub fn format_user(&self, id: u32) -> String {
        self.users.get(&id).map_or_else(|| id.to_string(), format_path)
    }

    /// The name of a group, or its number if it has none.
    pub fn format_group(&self, id: u32) -> String {
        self.groups.get(&id).map_or_else(|| id.to_string(), format_path)
    }

    /// The number of a user, and its name if it has one.
    pub fn describe_user(&self, id: u32) -> String {
        describe(id, self.users.get(&id))
    }

    /// The number of a group, and its name if it has one.
    pub fn describe_group(&self, id: u32) -> String {
        describe(id, self.groups.get(&id))
    }
}

fn describe(id: u32, name: Option<&String>) -> String {
    name.map_or_else(|| id.to_string(), |name| format!("{id} ({})", format_path(name)))
}
