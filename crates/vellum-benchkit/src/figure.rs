//! Figures that are not times: bytes for each key, memory for each entry, syncs.
//!
//! Invariant: such a figure is reported once a run, under the id of the bench that it belongs to. Where Criterion keeps
//! its results there is a folder `figures`, so that `bench/run.py micro` finds both in one place.

use std::path::{Path, PathBuf};

/// Reports a figure of a bench: printed, and kept beside Criterion's results if `CRITERION_HOME` says where they are.
///
/// `quantity` is what it is, for example `bytes for each key`; `unit` is one of `bytes` and `count`.
///
/// # Panics
/// If it cannot be written.
pub fn record_figure(id: &str, quantity: &str, value: f64, unit: &str) {
    if !crate::is_measuring() {
        return;
    }
    println!("{id}: {quantity}: {value:.1}");
    if let Some(home) = std::env::var_os("CRITERION_HOME") {
        let path = figure_path(&PathBuf::from(home), id, quantity);
        let text =
            serde_json::json!({"id": id, "quantity": quantity, "value": value, "unit": unit}).to_string();
        let written = std::fs::create_dir_all(path.parent().unwrap_or(&path))
            .and_then(|()| std::fs::write(&path, text));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn figure_path(home: &Path, id: &str, quantity: &str) -> PathBuf {
    // The slashes of an id would be directories.
    home.join("figures").join(format!("{id} {quantity}.json").replace('/', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_file_of_its_own() {
        let found = figure_path(Path::new("/home"), "map/apply/scattered", "bytes for each key");
        assert_eq!(found, Path::new("/home/figures/map_apply_scattered bytes for each key.json"));
    }
}
