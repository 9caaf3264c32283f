//! Floor 8: volumes for Python, the native part of the package `vellum`.
//!
//! The classes here are what the package in python/vellum stands on: they take paths as bytes and return plain values.
//! What a Python programmer uses (paths with operators, context managers, files with buffers, fsspec) is written in Python
//! over them.
//!
//! Invariants: the interpreter's lock is released while the library works. A handle that was opened before a `fork(2)`
//! refuses to be used after it. Errors are the exceptions of `vellum.errors`.

mod content;
mod error;
mod file;
mod handle;
mod history;
mod rows;
mod scan;
mod tree;
mod volume;

use pyo3::prelude::*;

/// The native part of the package `vellum`.
// All classes are frozen, and what changes in them has a lock of its own: they need no lock of the interpreter.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::file::NativeFile;
    #[pymodule_export]
    use crate::scan::NativeScan;
    #[pymodule_export]
    use crate::tree::NativeTree;
    #[pymodule_export]
    use crate::volume::{NativeVolume, create_volume, open_address, open_volume};

    /// The version of the package.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python programs know")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
