//! Parses store addresses: the one place where they are interpreted.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use vellum_types::ErrorKind;

use super::{LocalStore, ObjectStore, OpendalStore};
use crate::error::StoreError;

/// Stores in memory live as long as the process and are found again by name.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<OpendalStore>>>> = LazyLock::new(Mutex::default);

enum StoreAddress {
    Directory(PathBuf),
    Memory(String),
}

/// Opens the store at a path, `file:///path` or `memory://name`. It must exist (memory always does).
pub fn open_store(url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    match parse_address(url)? {
        StoreAddress::Directory(path) => Ok(Arc::new(LocalStore::open(path)?)),
        StoreAddress::Memory(name) => open_memory_store(&name),
    }
}

/// Like [`open_store`], and makes the directory if there is none.
pub fn create_store(url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    match parse_address(url)? {
        StoreAddress::Directory(path) => Ok(Arc::new(LocalStore::create(path)?)),
        StoreAddress::Memory(name) => open_memory_store(&name),
    }
}

/// What was typed, as it can be kept: a relative path is joined to `base`, and has no `..` any more, so that it stays right
/// when `base` is moved; an address stays as it is.
pub fn resolve_store_url(url: &str, base: &Path) -> Result<String, StoreError> {
    match parse_address(url)? {
        StoreAddress::Directory(path) => Ok(remove_dot_components(&base.join(path)).display().to_string()),
        StoreAddress::Memory(_) => Ok(url.to_owned()),
    }
}

/// The same path without `.` and `..`. Where `..` follows a symlink, that is resolved first.
fn remove_dot_components(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain = plain.canonicalize().unwrap_or(plain);
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(component),
        }
    }
    plain
}

fn open_memory_store(name: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let mut stores = MEMORY.lock();
    if let Some(store) = stores.get(name) {
        return Ok(store.clone());
    }
    let store = Arc::new(OpendalStore::new_memory(&format!("memory://{name}"))?);
    stores.insert(name.to_owned(), store.clone());
    Ok(store)
}

fn parse_address(url: &str) -> Result<StoreAddress, StoreError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return parse_dir(url);
    };
    match scheme {
        "file" if rest.starts_with('/') => Ok(StoreAddress::Directory(rest.into())),
        "file" => {
            Err(address_error(url, "a file address needs an absolute path: file:///path", ErrorKind::Usage))
        }
        "memory" => Ok(StoreAddress::Memory(rest.to_owned())),
        _ => Err(address_error(&strip_secrets(scheme, rest), DIRECTORIES_ONLY, ErrorKind::Unsupported)),
    }
}

/// Why every other address is refused.
const DIRECTORIES_ONLY: &str = "this version keeps stores in directories only (a path or file:///path)";

/// A path. One that other programs would take for a place elsewhere is refused, so that no directory of that name comes to
/// be: whoever means one says so with './'.
fn parse_dir(url: &str) -> Result<StoreAddress, StoreError> {
    let path = url.strip_prefix("file:").unwrap_or(url);
    if path.is_empty() || path.contains('\0') {
        return Err(address_error(url, "it is not a path", ErrorKind::Usage));
    }
    if path.starts_with('~') {
        let reason = format!(
            "the shell replaces '~' only where it begins an unquoted word: write \"$HOME{}\", or './{path}' for a \
             directory of that name",
            path.strip_prefix('~').filter(|rest| rest.starts_with('/')).unwrap_or("/…")
        );
        return Err(address_error(url, &reason, ErrorKind::Usage));
    }
    let first = path.split('/').next().unwrap_or_default();
    match first.split_once(':') {
        None => Ok(StoreAddress::Directory(path.into())),
        Some(("memory", name)) => {
            let reason =
                format!("a store in memory is written 'memory://{name}', and a directory './{path}'");
            Err(address_error(url, &reason, ErrorKind::Usage))
        }
        Some(_) => {
            let shown = strip_user(path);
            let reason = format!("{DIRECTORIES_ONLY}; a directory of that name is written './{shown}'");
            Err(address_error(shown, &reason, ErrorKind::Usage))
        }
    }
}

/// Leaves out what stands before `@`: it may have a password.
fn strip_user(path: &str) -> &str {
    path.split_once('@').map_or(path, |(_, rest)| rest)
}

fn address_error(url: &str, reason: &str, kind: ErrorKind) -> StoreError {
    StoreError::Address { url: url.to_owned(), reason: reason.to_owned(), kind }
}

/// Leaves out what stands before `@` and after `?`: user names, passwords, tokens.
fn strip_secrets(scheme: &str, rest: &str) -> String {
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = host.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_address_that_is_kept_does_not_depend_on_the_directory_it_was_typed_in() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("far/away")).unwrap();
        std::fs::create_dir(root.join("work")).unwrap();
        std::os::unix::fs::symlink(root.join("far/away"), root.join("work/link")).unwrap();
        for (typed, kept) in [
            ("../store", "store"),
            ("./store/.", "work/store"),
            ("missing/../store", "work/store"),
            ("link/store", "work/link/store"),
            ("link/../store", "far/store"),
        ] {
            let expected = root.join(kept).display().to_string();
            assert_eq!(resolve_store_url(typed, &root.join("work")).unwrap(), expected, "{typed}");
        }
    }

    #[test]
    fn addresses_that_no_version_can_mean_are_usage_errors() {
        for (url, kind) in [
            ("", ErrorKind::Usage),
            ("file://host/x", ErrorKind::Usage),
            ("host:/x", ErrorKind::Usage),
            ("user:pass@host:x", ErrorKind::Usage),
            ("sftp:host", ErrorKind::Usage),
            ("s3:bucket", ErrorKind::Usage),
            ("memory:", ErrorKind::Usage),
            ("~/x", ErrorKind::Usage),
            ("~ann/x", ErrorKind::Usage),
            ("s3://user:pass@bucket/x?token=1", ErrorKind::Unsupported),
        ] {
            let Err(error) = open_store(url) else { panic!("{url} was opened") };
            assert_eq!(error.kind(), kind, "{url}");
            let text = error.to_string();
            assert!(!text.contains("pass") && !text.contains("token"), "{text}");
        }
    }

    #[test]
    fn paths_with_colons_are_paths_where_nothing_else_can_be_meant() -> Result<(), StoreError> {
        let base = Path::new("/base");
        assert_eq!(resolve_store_url("./host:x", base)?, "/base/host:x");
        assert_eq!(resolve_store_url("/a:b/c", base)?, "/a:b/c");
        assert_eq!(resolve_store_url("dir/a:b", base)?, "/base/dir/a:b");
        assert_eq!(resolve_store_url("./~/x", base)?, "/base/~/x");
        assert_eq!(resolve_store_url("file:///a", base)?, "/a");
        assert_eq!(resolve_store_url("memory://x", base)?, "memory://x");
        Ok(())
    }

    #[test]
    fn memory_stores_are_found_again_by_name() -> Result<(), StoreError> {
        let key = super::super::ObjectKey::new("x")?;
        open_store("memory://url-test")?.put_object(&key, b"1")?;
        assert_eq!(open_store("memory://url-test")?.get_object(&key, 9)?, b"1");
        assert!(open_store("memory://url-test-other")?.get_object(&key, 9).is_err());
        Ok(())
    }
}
