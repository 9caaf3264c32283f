//! Errors as S3 has them.

use hyper::StatusCode;
use rustix::io::Errno;
use s3s::{S3Error, S3ErrorCode, S3Result, StdError, s3_error};
use vellum_types::ErrorKind;

use super::keys::{KeyRefusal, ObjectKey};

/// Runs what reads or changes the tree on a thread that may wait.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> S3Result<T> + Send + 'static,
) -> S3Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| s3_error!(InternalError, "the request failed"))?
}

/// The error of S3 that an error of the library is.
pub(super) fn tree_error(error: vellum_library::Error) -> S3Error {
    match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => return s3_error!(NoSuchKey),
        Some(Errno::NOTDIR | Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) => return path_conflict(),
        Some(Errno::NOSPC | Errno::DQUOT) => return no_space(),
        Some(Errno::NAMETOOLONG) => return s3_error!(KeyTooLongError, "{}", KeyRefusal::TooLong),
        Some(Errno::FBIG) => return s3_error!(EntityTooLarge, "no file can be this large"),
        Some(Errno::LOOP | Errno::NXIO | Errno::INVAL | Errno::BUSY | Errno::ROFS | Errno::PERM) => {
            return s3_error!(AccessDenied, "{error}");
        }
        Some(_) | None => {}
    }
    match error.kind() {
        ErrorKind::NotFound => s3_error!(NoSuchKey),
        ErrorKind::Conflict => path_conflict(),
        ErrorKind::Denied | ErrorKind::Usage | ErrorKind::Unsupported => s3_error!(AccessDenied, "{error}"),
        ErrorKind::NoSpace => no_space(),
        // Clients try again, and a store may be back by then.
        ErrorKind::Corrupt | ErrorKind::Interrupted | ErrorKind::Io => s3_error!(InternalError, "{error}"),
    }
}

/// A file cannot have the name of a directory, or lie within a file. S3 has no error for that.
pub(super) fn path_conflict() -> S3Error {
    let message = "a file and a directory would have the same name: keys are paths here, and 'a' and 'a/b' cannot both be objects";
    custom_error("PathConflict", StatusCode::CONFLICT, message)
}

// Not one of the statuses with which clients try again: the room does not come by waiting.
fn no_space() -> S3Error {
    let message = "there is no room left, in the worktree's quota or on the disk";
    custom_error("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, message)
}

fn custom_error(code: &'static str, status: StatusCode, message: &'static str) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// A key of something that is to be changed.
pub(super) fn parse_key(key: &str) -> S3Result<ObjectKey> {
    ObjectKey::parse(key).map_err(|refusal| match refusal {
        KeyRefusal::TooLong => s3_error!(KeyTooLongError, "{refusal}"),
        KeyRefusal::NoPath | KeyRefusal::Reserved => s3_error!(InvalidArgument, "{refusal}"),
    })
}

/// Why the content of a request broke off. `s3s` says what it found wrong in words only: its types are private.
pub(super) fn content_error(error: &StdError) -> S3Error {
    let text = error.to_string();
    if text.contains("Sha256Mismatch") {
        return custom_error(
            "XAmzContentSHA256Mismatch",
            StatusCode::BAD_REQUEST,
            "the content is not what was signed",
        );
    }
    if text.contains("SignatureMismatch") {
        return s3_error!(SignatureDoesNotMatch, "a part of the content is not what was signed");
    }
    s3_error!(IncompleteBody, "the content breaks off, or is not as long as was said")
}
