//! The oldest Rust that Vellum promises to build with is `rust-version` of the workspace; whatever else names one agrees.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The value of a line `name = "value"`.
fn value_of(text: &str, name: &str) -> String {
    let prefix = format!("{name} = \"");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix)?.split('"').next());
    value.unwrap_or_else(|| panic!("no {name} in\n{text}")).to_owned()
}

/// Manifests below a folder, one level deep.
fn manifests(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let found = entries.map(|entry| entry.unwrap().path().join("Cargo.toml")).filter(|path| path.exists());
    found.collect()
}

#[test]
fn one_place_says_which_rust_is_the_oldest() {
    let oldest = value_of(&read("Cargo.toml"), "rust-version");
    let crates = manifests("crates");
    assert!(crates.len() > 10, "{crates:?}");
    for manifest in crates {
        assert!(read(&manifest).contains("rust-version.workspace = true"), "{}", manifest.display());
    }
    // Workspaces of their own, which cannot inherit it.
    for manifest in ["fuzz/Cargo.toml", "bench/engines/Cargo.toml"] {
        assert_eq!(value_of(&read(manifest), "rust-version"), oldest, "{manifest}");
    }
    for page in ["README.md", "CONTRIBUTING.md"] {
        assert!(read(page).contains(&format!("Rust {oldest} or later")), "{page}");
    }
    assert!(!read("clippy.toml").contains("msrv"), "clippy takes it from Cargo.toml");
}

#[test]
fn contributors_and_continuous_integration_build_with_a_rust_that_is_new_enough() {
    // Never older than the oldest one.
    assert_eq!(value_of(&read("rust-toolchain.toml"), "channel"), "stable");
    let workflow = read(".github/workflows/test.yml");
    assert!(
        workflow.contains(r#"sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml"#),
        "CI builds with the oldest one"
    );
    let folders = [".github/workflows", ".ci"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let files = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    for file in files.chain([root().join("Makefile")]) {
        let text = read(&file);
        let named = text.lines().find(|line| {
            let mut words = line.split(|c: char| c.is_whitespace() || "+\"'@:".contains(c));
            words.any(|word| word.strip_prefix("1.").is_some_and(is_minor_version))
        });
        assert_eq!(named, None, "{} names a version of Rust by itself", file.display());
    }
}

/// Whether this is a version of two digits, possibly with a third part.
fn is_minor_version(text: &str) -> bool {
    let minor = text.split('.').next().unwrap_or_default();
    minor.len() == 2 && minor.bytes().all(|digit| digit.is_ascii_digit())
}
