//! Results of operations on something that may not exist.
//!
//! Invariant: only the error that says so is replaced. All others pass unchanged.

use std::io;

/// An error that can mean that something does not exist.
pub trait MissingError {
    /// Whether it means that.
    fn is_missing(&self) -> bool;
}

impl MissingError for io::Error {
    fn is_missing(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }
}

/// The result of an operation on something that may not exist.
pub trait LookupResult<T, E>: Sized {
    /// Returns `None` if it does not exist.
    fn none_if_missing(self) -> Result<Option<T>, E>;

    /// Succeeds as well if it does not exist, as for a removal that another process was faster with.
    fn ignore_missing(self) -> Result<(), E> {
        self.none_if_missing().map(drop)
    }
}

impl<T, E: MissingError> LookupResult<T, E> for Result<T, E> {
    fn none_if_missing(self) -> Result<Option<T>, E> {
        match self {
            Err(error) if error.is_missing() => Ok(None),
            found => found.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_nothing_is_there_is_replaced() {
        let failed = |kind: io::ErrorKind| Err::<u8, io::Error>(kind.into());
        assert_eq!(failed(io::ErrorKind::NotFound).none_if_missing().ok(), Some(None));
        assert!(failed(io::ErrorKind::NotFound).ignore_missing().is_ok());
        assert_eq!(Ok::<u8, io::Error>(1).none_if_missing().ok(), Some(Some(1)));
        for other in [io::ErrorKind::NotADirectory, io::ErrorKind::PermissionDenied] {
            assert!(failed(other).none_if_missing().is_err_and(|error| error.kind() == other));
            assert!(failed(other).ignore_missing().is_err());
        }
    }
}
