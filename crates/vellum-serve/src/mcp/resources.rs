//! Resources: files and directories of snapshots, by address. They are read through the library, and never change.

use percent_encoding::percent_decode_str;
use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::{Value, json};
use vellum_library::{FileKind, SnapshotId, Tree as _};

use super::answer::{ToolError, ToolResult};
use super::arguments::{HistoryArguments, PathArguments, ROWS_MAX, check_tool_path};
use super::connection::SharedTools;
use super::reading::READ_MAX;

/// How an address begins.
const SCHEME: &str = "vellum://snapshot/";
/// Longest address, bytes: a path of which each byte is three characters, and the id.
const ADDRESS_MAX: usize = 3 * 4096 + 128;

/// A path in a snapshot, as an address has it.
#[derive(Debug, PartialEq, Eq)]
struct ResourceAddress {
    snapshot: SnapshotId,
    path: String,
}

impl ResourceAddress {
    /// `vellum://snapshot/ID/PATH`, the path percent-encoded; the empty one is the root. Whole ids only: what an address means
    /// never changes.
    fn parse(address: &str) -> ToolResult<Self> {
        let wrong = || ToolError::usage(format!("an address is {SCHEME}ID/PATH, with a whole id"));
        let rest = address.strip_prefix(SCHEME).filter(|_| address.len() <= ADDRESS_MAX).ok_or_else(wrong)?;
        let (id, path) = rest.split_once('/').ok_or_else(wrong)?;
        let path = percent_decode_str(path).decode_utf8().map_err(|_| wrong())?.into_owned();
        // After decoding: '%2e%2e' is a harmless name before it.
        check_tool_path(&path)?;
        Ok(Self { snapshot: id.parse().map_err(|_| wrong())?, path })
    }
}

/// The template of all addresses.
pub fn describe_addresses() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{id}}/{{+path}}"), "snapshot").with_description(
        "A file of a snapshot, or the entries of a directory as JSON; the id is a whole one",
    )
}

impl SharedTools {
    /// The roots of the newest snapshots of the worktree.
    pub async fn list_resources(&self) -> ToolResult<Vec<Resource>> {
        let asked = HistoryArguments { limit: Some(ROWS_MAX), ..HistoryArguments::default() };
        let history = self.list_history(asked).await?;
        let rows = history["snapshots"].as_array().into_iter().flatten();
        // Notes are left out: a client shows descriptions as words of this server, and notes are anybody's.
        let describe = |row: &Value| {
            let id = row["id"].as_str()?;
            let time = row["time"].as_str().unwrap_or_default();
            let resource = Resource::new(format!("{SCHEME}{id}/"), id.get(..12).unwrap_or_default());
            Some(
                resource
                    .with_description(format!("The root of the snapshot of {time}"))
                    .with_mime_type("application/json"),
            )
        };
        Ok(rows.filter_map(describe).collect())
    }

    /// What is at an address. A file that is longer than one answer is refused: the tool `read` has parts.
    pub async fn read_resource(&self, address: &str) -> ToolResult<ReadResourceResult> {
        let ResourceAddress { snapshot, path } = ResourceAddress::parse(address)?;
        let asked = || PathArguments {
            snapshot: Some(snapshot.to_string()),
            path: Some(path.clone()),
            ..PathArguments::default()
        };
        let own = path.clone();
        let kind = self
            .read_volume(move |volume| Ok(volume.open_snapshot(&snapshot.to_string())?.lstat(&own)?.kind()))
            .await?;
        if kind == FileKind::Dir {
            let listing = self.list_directory(asked()).await?;
            let contents = ResourceContents::text(listing.to_string(), address);
            return Ok(ReadResourceResult::new(vec![contents.with_mime_type("application/json")]));
        }
        let read = self.read_file(asked()).await?;
        if read["truncated"] == true {
            return Err(ToolError::usage(format!("the file has more than {} KiB", READ_MAX >> 10))
                .with_hint("the tool 'read' gives it in parts"));
        }
        let contents = match (read["text"].as_str(), read["base64"].as_str()) {
            (Some(text), _) => ResourceContents::text(text, address).with_mime_type("text/plain"),
            (None, base64) => ResourceContents::blob(base64.unwrap_or_default(), address)
                .with_mime_type("application/octet-stream"),
        };
        Ok(ReadResourceResult::new(vec![contents]))
    }
}

/// The error of the protocol for what a resource refuses.
pub fn resource_error(error: ToolError, address: &str) -> ErrorData {
    let data = Some(json!({ "uri": address, "code": error.code, "hint": error.hint }));
    match error.code.as_str() {
        "not_found" => ErrorData::resource_not_found(error.message, data),
        "usage" => ErrorData::invalid_params(error.message, data),
        _ => ErrorData::internal_error(error.message, data),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn addresses_stay_inside() {
        let path = |rest: &str| ResourceAddress::parse(&format!("{SCHEME}{rest}")).map(|found| found.path);
        assert_eq!(path(&format!("{ID}/")).unwrap(), "");
        assert_eq!(path(&format!("{ID}/a/b%20c")).unwrap(), "a/b c");
        for wrong in ["../x", "%2e%2e/x", "a//b", "/etc/passwd", "a%00", "%ff", "a/."] {
            assert!(path(&format!("{ID}/{wrong}")).is_err(), "{wrong}");
        }
        assert!(path(ID).is_err());
        assert!(path("HEAD/a").is_err());
        assert!(path(&format!("{ID}/{}", "a".repeat(ADDRESS_MAX))).is_err());
        assert!(ResourceAddress::parse(&format!("file://{ID}/a")).is_err());
    }
}
