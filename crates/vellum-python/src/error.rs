//! Errors of the library as exceptions of `vellum.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use vellum_json::error_code;
use vellum_library::Error;
use vellum_types::ErrorKind;
use vellum_volume::VolumeError;

/// The function `vellum.errors.make_error`, which chooses the class.
static MAKE_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The class of errors of handles that cannot be used any more.
static CLOSED_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Makes an exception of an error of the library.
pub fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    make_exception(py, error.kind(), error.errno(), error.to_string())
}

/// Makes an exception of a volume that was not opened by its address. It says which argument would do.
pub fn to_opening_exception(py: Python<'_>, error: &Error) -> PyErr {
    let advice = match error {
        Error::Volume(VolumeError::Locked) => {
            ": give passphrase= or key=, or set VELLUM_PASSPHRASE or VELLUM_KEY_FILE"
        }
        Error::Volume(VolumeError::WrongSecret) => ": passphrases are case-sensitive",
        Error::Volume(VolumeError::OtherSort { encrypted: true, .. }) => {
            ": leave out plain=True, and give what opens it"
        }
        Error::Volume(VolumeError::OtherSort { encrypted: false, .. }) => {
            ": plain=True opens it; if the one that you know was encrypted, somebody exchanged it"
        }
        _ => "",
    };
    make_exception(py, error.kind(), error.errno(), format!("{error}{advice}"))
}

/// Makes the exception of a failure of this kind, which POSIX may have a number for.
pub fn make_exception(py: Python<'_>, kind: ErrorKind, errno: Option<i32>, message: String) -> PyErr {
    let made = || {
        // The classes are written in Python, since most of them inherit from two exceptions each, which a class of Rust cannot.
        let make = MAKE_ERROR.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("vellum.errors")?.getattr("make_error")?.unbind())
        })?;
        make.bind(py).call1((error_code(kind), errno, message))
    };
    match made() {
        Ok(exception) => PyErr::from_value(exception),
        // The package cannot be loaded: that is what the caller has to know first.
        Err(failure) => failure,
    }
}

/// The exception of a handle that is closed or that belongs to the process before a fork.
pub fn unusable_handle(py: Python<'_>, message: String) -> PyErr {
    match CLOSED_ERROR.import(py, "vellum.errors", "ClosedError") {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(failure) => failure,
    }
}

/// Runs work of the library without the interpreter's lock.
pub fn run_detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> vellum_library::Result<T> + Send,
) -> PyResult<T> {
    // The exception is made after the lock was taken again: it is an object of the interpreter.
    py.detach(work).map_err(|error| to_exception(py, &error))
}
