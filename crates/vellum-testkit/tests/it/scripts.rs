//! The tests of `bench`'s scripts, which decide what is said of measurements: run by Python, as the scripts are.

use std::path::Path;
use std::process::Command;

#[test]
fn what_measurements_are_said_to_mean_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let output = Command::new("python3")
        .args(["-m", "unittest", "discover", "-s", "bench"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A run that finds no test succeeds with some versions of Python.
    assert!(said.contains("\nRan ") && !said.contains("\nRan 0 "), "{said}");
}
