//! Typed paths and paths from the root of the worktree, either way round.
//!
//! Invariant: a path that comes out of `parse` has no `.`, no `..`, no empty component, and lies in the worktree,
//! not in its state directory.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use vellum_host::escape::format_path;
use vellum_volume::state::STATE_DIR;
use vellum_volume::tree::path_components;

use crate::error::{CliError, Result};

/// Converts paths for a user who stands somewhere in a worktree.
#[derive(Debug, Clone)]
pub struct UserPaths {
    cwd: PathBuf,
    root: PathBuf,
    /// The directory of the worktree that is seen at `root`; empty for its root.
    shown: PathBuf,
}

impl UserPaths {
    /// For a user who stands in `cwd`, at or below the worktree's `root`; both without symlinks.
    pub fn new(cwd: &Path, root: &Path) -> Self {
        Self { cwd: cwd.into(), root: root.into(), shown: PathBuf::new() }
    }

    /// The same where `root` shows no more than a directory of the worktree: a mount of it that is bound there.
    pub fn with_shown_dir(mut self, directory: &Path) -> Self {
        self.shown = directory.strip_prefix("/").unwrap_or(directory).into();
        self
    }

    /// The root of the worktree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A typed path, relative to where the user stands, as a path from the root; the root itself is empty.
    pub fn parse_path(&self, typed: &OsStr) -> Result<Vec<u8>> {
        if typed.is_empty() {
            return Err(CliError::usage_error("the path is empty", "the directory you stand in is '.'"));
        }
        // By the names alone, because the path may exist only in a snapshot, where the kernel cannot resolve '..'.
        let full = normalize_path(&self.cwd.join(typed));
        let inside = full.strip_prefix(&self.root).map(Path::to_path_buf).ok();
        let relative = inside
            // Tried second: it needs the directories to exist, and a path in a snapshot may have none here.
            .or_else(|| self.resolve_symlinked_path(&full))
            .ok_or_else(|| self.outside_worktree_error(typed))?;
        let path = self.path_from_root(&relative);
        // Only at the root: a directory of this name further down is the user's own, and is recorded like any
        // other.
        if path_components(&path).next() == Some(STATE_DIR.as_bytes()) {
            let message =
                format!("'{}' belongs to Vellum itself and is in no snapshot", format_path(typed.as_bytes()));
            return Err(CliError::usage_error(message, ""));
        }
        Ok(path)
    }

    /// All of some typed paths.
    pub fn parse_paths(&self, typed: &[std::ffi::OsString]) -> Result<Vec<Vec<u8>>> {
        typed.iter().map(|path| self.parse_path(path)).collect()
    }

    /// A path may name the worktree through a symlink outside of it: its directory decides.
    fn resolve_symlinked_path(&self, full: &Path) -> Option<PathBuf> {
        // The last name is left as it is: if it is a symlink, the symlink itself is meant.
        let parent = full.parent()?.canonicalize().ok()?;
        let full = full.file_name().map_or_else(|| parent.clone(), |name| parent.join(name));
        full.strip_prefix(&self.root).map(Path::to_path_buf).ok()
    }

    fn outside_worktree_error(&self, typed: &OsStr) -> CliError {
        let message = format!(
            "'{}' lies outside of the worktree {}",
            format_path(typed.as_bytes()),
            self.root.display()
        );
        CliError::usage_error(message, "paths are relative to the directory you stand in")
    }

    /// Where the user stands, as a path from the root.
    pub fn current_path(&self) -> Vec<u8> {
        self.path_from_root(self.cwd.strip_prefix(&self.root).unwrap_or(Path::new("")))
    }

    /// What lies there below `root`, as a path from the root of the worktree.
    fn path_from_root(&self, relative: &Path) -> Vec<u8> {
        // To join an empty path would put a slash at the end.
        let path =
            if relative.as_os_str().is_empty() { self.shown.clone() } else { self.shown.join(relative) };
        path.into_os_string().into_vec()
    }

    /// A path from the root as the user would type it, escaped for the terminal.
    pub fn format_path(&self, path: &[u8]) -> String {
        let here = self.current_path();
        let mut from = path_components(&here).peekable();
        let mut to = path_components(path).peekable();
        while from.peek().is_some() && from.peek() == to.peek() {
            from.next();
            to.next();
        }
        let parts: Vec<&[u8]> = from.map(|_| &b".."[..]).chain(to).collect();
        if parts.is_empty() { ".".into() } else { format_path(parts.join(&b'/')) }
    }
}

/// The path without `.` and `..`, by the names alone.
fn normalize_path(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                // As for the kernel, the root is above itself.
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> UserPaths {
        UserPaths::new(Path::new("/w/sub/dir"), Path::new("/w"))
    }

    fn parse(typed: &str) -> Option<String> {
        paths().parse_path(OsStr::new(typed)).ok().map(|path| String::from_utf8_lossy(&path).into_owned())
    }

    #[test]
    fn paths_are_relative_to_where_the_user_stands() {
        assert_eq!(parse("a").as_deref(), Some("sub/dir/a"));
        assert_eq!(parse("./a//b/").as_deref(), Some("sub/dir/a/b"));
        assert_eq!(parse("../a").as_deref(), Some("sub/a"));
        assert_eq!(parse("../..").as_deref(), Some(""));
        assert_eq!(parse("/w/a").as_deref(), Some("a"));
        assert_eq!(parse(".").as_deref(), Some("sub/dir"));
    }

    #[test]
    fn below_a_bind_paths_are_from_the_root_of_the_worktree() {
        let paths = UserPaths::new(Path::new("/w/sub"), Path::new("/w")).with_shown_dir(Path::new("/a/b"));
        let parse = |typed: &str| paths.parse_path(OsStr::new(typed)).ok();
        assert_eq!(parse("x"), Some(b"a/b/sub/x".to_vec()));
        assert_eq!(parse(".."), Some(b"a/b".to_vec()));
        assert_eq!(parse("../.."), None);
        assert_eq!(paths.format_path(b"a/b/c"), "../c");
        assert_eq!(paths.format_path(b"d"), "../../../d");
    }

    #[test]
    fn what_lies_outside_is_refused() {
        for typed in ["", "../../..", "/", "/wide", "../../../w2/a", "/w/.vellum", "../../.vellum/key"] {
            assert_eq!(parse(typed), None, "{typed}");
        }
        assert_eq!(parse(".vellum").as_deref(), Some("sub/dir/.vellum"));
    }

    #[test]
    fn paths_are_shown_as_they_would_be_typed() {
        let shown = |path: &str| paths().format_path(path.as_bytes());
        assert_eq!(shown("sub/dir/a"), "a");
        assert_eq!(shown("sub/dir"), ".");
        assert_eq!(shown("sub/other"), "../other");
        assert_eq!(shown("x\ny"), "../../x\\ny");
        assert_eq!(shown(""), "../..");
    }
}
