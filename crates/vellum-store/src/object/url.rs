//! What a user typed becomes a store: the one place where addresses are understood.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use vellum_types::ErrorKind;

use super::{LocalDir, ObjectStore, OpendalStore};
use crate::error::StoreError;

/// Stores in memory live as long as the process and are found again by name.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<OpendalStore>>>> = LazyLock::new(Mutex::default);

enum Address {
    Directory(PathBuf),
    Memory(String),
}

/// Opens the store at a path, `file:///path` or `memory://name`. It must exist (memory always does).
pub fn open(url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    match parse(url)? {
        Address::Directory(path) => Ok(Arc::new(LocalDir::open(path)?)),
        Address::Memory(name) => memory(&name),
    }
}

/// Like [`open`], and makes the directory if there is none.
pub fn create(url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    match parse(url)? {
        Address::Directory(path) => Ok(Arc::new(LocalDir::create(path)?)),
        Address::Memory(name) => memory(&name),
    }
}

fn memory(name: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let mut stores = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = stores.get(name) {
        return Ok(store.clone());
    }
    let store = Arc::new(OpendalStore::memory(&format!("memory://{name}"))?);
    stores.insert(name.to_owned(), store.clone());
    Ok(store)
}

fn parse(url: &str) -> Result<Address, StoreError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        let path = url.strip_prefix("file:").unwrap_or(url);
        return if path.is_empty() || path.contains('\0') {
            Err(refuse(url, "it is not a path", ErrorKind::Usage))
        } else {
            Ok(Address::Directory(path.into()))
        };
    };
    match scheme {
        "file" if rest.starts_with('/') => Ok(Address::Directory(rest.into())),
        "file" => Err(refuse(url, "a file address needs an absolute path: file:///path", ErrorKind::Usage)),
        "memory" => Ok(Address::Memory(rest.to_owned())),
        _ => Err(refuse(
            &without_secrets(scheme, rest),
            "this version supports directories only (a path or file:///path)",
            ErrorKind::Unsupported,
        )),
    }
}

fn refuse(url: &str, reason: &str, kind: ErrorKind) -> StoreError {
    StoreError::Address { url: url.to_owned(), reason: reason.to_owned(), kind }
}

/// Leaves out what stands before `@` and after `?`: user names, passwords, tokens.
fn without_secrets(scheme: &str, rest: &str) -> String {
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let host = host.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_version_can_mean_are_usage_errors() {
        for (url, kind) in [
            ("", ErrorKind::Usage),
            ("file://host/x", ErrorKind::Usage),
            ("s3://user:pass@bucket/x?token=1", ErrorKind::Unsupported),
        ] {
            let Err(error) = open(url) else { panic!("{url} was opened") };
            assert_eq!(error.kind(), kind, "{url}");
            let text = error.to_string();
            assert!(!text.contains("pass") && !text.contains("token"), "{text}");
        }
    }

    #[test]
    fn memory_stores_are_found_again_by_name() -> Result<(), StoreError> {
        let key = super::super::ObjectKey::new("x")?;
        open("memory://url-test")?.put(&key, b"1")?;
        assert_eq!(open("memory://url-test")?.get(&key, 9)?, b"1");
        assert!(open("memory://url-test-other")?.get(&key, 9).is_err());
        Ok(())
    }
}
