//! Tools that change nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vellum_json::{FileJson, NameJson, file_kind_name, format_json_time};
use vellum_library::{FileKind, HistoryQuery, HistoryRow, PathVersion, SnapshotId, Tree as _, Volume};
use vellum_types::Ino;

use super::answer::{ToolError, ToolResult, cut_text};
use super::arguments::{
    DiffArguments, FindArguments, HistoryArguments, PathArguments, ROWS_MAX, check_pattern,
    check_snapshot_name, check_tool_path,
};
use super::connection::SharedTools;
use crate::web::api::snapshot_json;

/// Most bytes of a file in one answer.
pub const READ_MAX: usize = 256 << 10;
/// Most bytes of a patch in one answer.
const PATCH_MAX: usize = 64 << 10;
/// Digits of a whole id.
const ID_DIGITS: usize = 64;

impl SharedTools {
    /// The id of a snapshot that a client named. Also sees to it that a snapshot of a mount is in the store.
    pub async fn resolve_snapshot(&self, name: Option<&str>) -> ToolResult<SnapshotId> {
        let name = name.unwrap_or("HEAD");
        check_snapshot_name(name)?;
        // A whole id that the volume knows needs no command. Any other name is resolved by one, which also publishes what a mount
        // has not published yet.
        if name.len() == ID_DIGITS
            && let Ok(id) = name.parse()
            && self.volume.find_snapshot(id).is_ok()
        {
            return Ok(id);
        }
        let shown = self.run_in_worktree(["show", "--", name]).await?;
        let id = shown["snapshot"]["id"].as_str().and_then(|id| id.parse().ok());
        id.ok_or_else(|| ToolError::new("corrupt", "the command names no snapshot"))
    }

    /// Runs a command in the worktree that answers in JSON.
    pub async fn run_in_worktree<W: Into<OsString>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> ToolResult<Value> {
        let words = words.into_iter().map(Into::into).collect();
        Ok(self.command_line.run_for_json(&self.settings.worktree, words).await?)
    }

    /// Reads from the volume on a thread that may wait.
    pub async fn read_volume<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Volume) -> ToolResult<T> + Send + 'static,
    ) -> ToolResult<T> {
        let volume = Arc::clone(&self.volume);
        let read = tokio::task::spawn_blocking(move || read(&volume));
        // This fails only if the thread panicked, or the server is ending.
        read.await.map_err(|_| ToolError::new("io", "the call could not be carried out"))?
    }

    /// What changed since the last snapshot.
    pub async fn show_status(&self) -> ToolResult<Value> {
        // Without '--all', a new directory is one row, and an agent would not see what is in it.
        let mut status = self.run_in_worktree(["status", "--all"]).await?;
        let truncated = cut_rows(&mut status["changes"]);
        let mut answer = json!({ "truncated": truncated, "head": status["head"]["id"].take() });
        for field in [
            "worktree",
            "directory",
            "clean",
            "counts",
            "changes",
            "problems",
            "merge",
            "interrupted_restore",
        ] {
            answer[field] = status[field].take();
        }
        Ok(answer)
    }

    /// A part of the history of the worktree.
    pub async fn list_history(&self, asked: HistoryArguments) -> ToolResult<Value> {
        asked.path.as_deref().map_or(Ok(()), check_tool_path)?;
        asked.grep.as_deref().map_or(Ok(()), check_pattern)?;
        let limit = asked.limit.unwrap_or(20).clamp(1, ROWS_MAX);
        // Resolving the head publishes what a mount has not published yet.
        let head = self.resolve_snapshot(None).await;
        // A new worktree has no snapshot, which is no failure.
        if matches!(&head, Err(error) if error.code == "not_found") {
            return Ok(json!({ "snapshots": [], "more": false }));
        }
        head?;
        let worktree = self.find_worktree_name().await?;
        let query = HistoryQuery {
            worktree: Some(worktree),
            // The empty path is the root, and means the whole history.
            path: asked.path.filter(|path| !path.is_empty()).map(String::into_bytes),
            grep: asked.grep,
            ..HistoryQuery::first_rows(limit)
        };
        self.read_volume(move |volume| {
            let page = volume.history(&query)?;
            let rows: Vec<_> = page.rows.into_iter().map(|row: HistoryRow| snapshot_json(row)).collect();
            Ok(json!({ "snapshots": rows, "more": page.more }))
        })
        .await
    }

    async fn find_worktree_name(&self) -> ToolResult<String> {
        let info = self.run_in_worktree(["info"]).await?;
        info["worktree"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| ToolError::new("corrupt", "the worktree has no name"))
    }

    /// What differs.
    pub async fn compare(&self, asked: DiffArguments) -> ToolResult<Value> {
        let path = asked.path.unwrap_or_default();
        check_tool_path(&path)?;
        let from = self.resolve_snapshot(asked.from.as_deref()).await?.to_string();
        // As ids, which are neither options nor paths, whatever the client called the snapshots.
        let mut sides = vec![OsString::from(from)];
        if let Some(to) = &asked.to {
            sides.push(self.resolve_snapshot(Some(to)).await?.to_string().into());
        }
        if !path.is_empty() {
            sides.extend([OsString::from("--"), path.into()]);
        }
        let words = |option: &str| -> Vec<OsString> {
            ["diff", option].into_iter().map(OsString::from).chain(sides.iter().cloned()).collect()
        };
        let mut answer = self.run_in_worktree(words("--all")).await?;
        let truncated = cut_rows(&mut answer["changes"]);
        answer["truncated"] = json!(truncated);
        if asked.patch {
            let patch =
                self.command_line.run_for_text(&self.settings.worktree, words("--patch"), PATCH_MAX).await?;
            let text = String::from_utf8_lossy(&patch.head);
            // Cut once more: replacement characters are longer than the bytes for which they stand.
            let cut = cut_text(&text, PATCH_MAX);
            answer["patch"] = json!(cut.0);
            answer["patch_truncated"] = json!(cut.1 || patch.total > PATCH_MAX as u64);
        }
        Ok(answer)
    }

    /// A part of a directory.
    pub async fn list_directory(&self, asked: PathArguments) -> ToolResult<Value> {
        let path = asked.path.unwrap_or_default();
        check_tool_path(&path)?;
        let id = self.resolve_snapshot(asked.snapshot.as_deref()).await?;
        let limit = asked.limit.unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX);
        let skip = asked.offset.and_then(|offset| usize::try_from(offset).ok()).unwrap_or(0);
        self.read_volume(move |volume| {
            let tree = volume.open_snapshot(&id.to_string())?;
            // The path is that of the directory itself, not of what a symlink leads to.
            if !tree.lstat(&path)?.is_dir() {
                return Err(ToolError::usage("this is no directory"));
            }
            // From the first entry each time: an offset counts entries, and a directory can be entered only by a name.
            let page = tree.read_dir_page(&path, None, skip.saturating_add(limit))?;
            let entries: Vec<_> = page
                .entries
                .iter()
                .skip(skip)
                .map(|entry| FileJson::new(entry.name.as_bytes(), Ino(entry.metadata.ino()), entry.metadata.attributes()))
                .collect();
            Ok(json!({ "snapshot": id.to_string(), "path": path, "entries": entries, "total": page.total, "more": page.more }))
        })
        .await
    }

    /// A part of a file.
    pub async fn read_file(&self, asked: PathArguments) -> ToolResult<Value> {
        let path = asked.path.ok_or_else(|| ToolError::usage("'path' is missing"))?;
        check_tool_path(&path)?;
        let id = self.resolve_snapshot(asked.snapshot.as_deref()).await?;
        let offset = asked.offset.unwrap_or(0);
        let limit = asked.limit.unwrap_or(READ_MAX).clamp(1, READ_MAX);
        self.read_volume(move |volume| {
            let tree = volume.open_snapshot(&id.to_string())?;
            let found = tree.lstat(&path)?;
            if found.kind() != FileKind::File {
                let kind = file_kind_name(found.kind());
                return Err(ToolError::usage(format!("this is a {kind}, not a file")));
            }
            let content = read_part(&tree, Path::new(&path), offset, limit)?;
            let end = offset.saturating_add(content.len() as u64);
            let mut answer = json!({ "snapshot": id.to_string(), "path": path, "size": found.size(), "offset": offset,
                "truncated": end < found.size() });
            match readable_text(&content, end < found.size()) {
                Some(text) => {
                    // Behind the text and not behind what was read: the next part begins with a character that was cut.
                    answer["next_offset"] = json!(offset + text.len() as u64);
                    answer["text"] = json!(text);
                }
                None => {
                    answer["next_offset"] = json!(end);
                    answer["base64"] = json!(STANDARD.encode(&content));
                }
            }
            Ok(answer)
        })
        .await
    }

    /// The contents of a path.
    pub async fn list_versions(&self, asked: PathArguments) -> ToolResult<Value> {
        let path = asked.path.ok_or_else(|| ToolError::usage("'path' is missing"))?;
        check_tool_path(&path)?;
        // These arguments are shared with 'read' and 'list'. Here, an offset would be ignored without a word.
        if asked.offset.is_some() {
            return Err(ToolError::usage("'offset' is for 'read' and 'list'"));
        }
        let id = self.resolve_snapshot(asked.snapshot.as_deref()).await?;
        let limit = asked.limit.unwrap_or(20).clamp(1, ROWS_MAX);
        self.read_volume(move |volume| {
            let mut found = volume.path_versions(path.as_bytes(), id)?;
            let versions: Vec<PathVersion> =
                found.by_ref().take(limit).collect::<vellum_library::Result<_>>()?;
            // How many there are is not known: one more is looked for, and not shown.
            let more = found.next().transpose()?.is_some();
            let name = serde_json::to_value(NameJson::new(path.as_bytes())).unwrap_or_default();
            let rows: Vec<_> = versions.iter().map(version_json).collect();
            Ok(json!({ "path": name["path"], "versions": rows, "more": more }))
        })
        .await
    }

    /// Names that match.
    pub async fn find_names(&self, asked: FindArguments) -> ToolResult<Value> {
        check_pattern(&asked.pattern)?;
        let words = ["find"].into_iter().chain(asked.deleted.then_some("--deleted"));
        // Behind '--' a pattern is no option, whatever it begins with.
        let mut answer = self.run_in_worktree(words.chain(["--", &asked.pattern])).await?;
        let truncated = cut_rows(&mut answer["found"]);
        Ok(json!({ "found": answer["found"].take(), "truncated": truncated }))
    }
}

fn version_json(version: &PathVersion) -> Value {
    json!({
        "first": version.first.to_string(),
        "last": version.last.to_string(),
        "first_time": format_json_time(version.first_time),
        "last_time": format_json_time(version.last_time),
        "count": version.count,
        "kind": file_kind_name(version.kind),
        "size": version.size,
        "content": version.content.to_string(),
    })
}

/// Leaves the first rows of a list. Returns whether there were more.
pub fn cut_rows(list: &mut Value) -> bool {
    let Some(rows) = list.as_array_mut() else { return false };
    let is_long = rows.len() > ROWS_MAX;
    rows.truncate(ROWS_MAX);
    is_long
}

fn read_part(tree: &vellum_library::Snapshot, path: &Path, offset: u64, limit: usize) -> ToolResult<Vec<u8>> {
    let file = tree.open(path)?;
    let mut content = vec![0; limit];
    let mut filled = 0;
    // One read may give less than was asked for.
    while let Some(rest) = content.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64))? {
            0 => break,
            count => filled += count,
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// The content as text, if it is text. A character that the end of the part cuts is left for the next part.
fn readable_text(content: &[u8], has_more: bool) -> Option<&str> {
    let text = match std::str::from_utf8(content) {
        Ok(text) => text,
        // Without a length, the error is that the bytes end within a character.
        Err(error) if has_more && error.error_len().is_none() && error.valid_up_to() > 0 => {
            std::str::from_utf8(content.get(..error.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    // NUL is UTF-8, and stands in no text.
    (!text.contains('\0')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_text_is_text() {
        assert_eq!(readable_text(b"abc", false), Some("abc"));
        assert_eq!(readable_text("aä".as_bytes(), false), Some("aä"));
        assert_eq!(readable_text(b"a\xc3", true), Some("a"));
        assert_eq!(readable_text(b"a\xc3", false), None);
        assert_eq!(readable_text(b"\xff", true), None);
        assert_eq!(readable_text(b"a\0", false), None);
        assert_eq!(readable_text(b"", false), Some(""));
    }

    #[test]
    fn long_lists_are_cut() {
        let mut list = json!(vec![0; ROWS_MAX + 1]);
        assert!(cut_rows(&mut list));
        assert!(!cut_rows(&mut list));
        assert!(!cut_rows(&mut Value::Null));
    }
}
