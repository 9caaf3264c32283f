//! Errors as S3 has them.

use hyper::header::CONTENT_LENGTH;
use hyper::{Response, StatusCode};
use rustix::io::Errno;
use s3s::{Body, S3Error, S3ErrorCode, S3Result, StdError, s3_error};
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

/// Adds a message to a failure that has a code only. `s3s` writes such failures itself, where nothing of ours is asked, and
/// clients show "Unknown" for them.
pub(super) fn explain_failure(mut answer: Response<Body>) -> Response<Body> {
    if !(answer.status().is_client_error() || answer.status().is_server_error()) {
        return answer;
    }
    // The body of a failure is in memory; content that is sent piece by piece is none.
    let explained = answer.body().bytes().and_then(|xml| add_message(std::str::from_utf8(&xml).ok()?));
    if let Some(xml) = explained {
        // It was that of the shorter body.
        answer.headers_mut().remove(CONTENT_LENGTH);
        *answer.body_mut() = Body::from(xml);
    }
    answer
}

/// The XML of a failure with a message. None: it has one, or is no failure.
fn add_message(xml: &str) -> Option<String> {
    // The names of elements cannot stand in the text of others, where '<' is escaped.
    let code = xml.split_once("<Code>")?.1.split_once("</Code>")?.0;
    if xml.contains("<Message>") {
        return None;
    }
    let end = format!("{code}</Code>");
    Some(xml.replacen(&end, &format!("{end}<Message>{}</Message>", default_message(code)), 1))
}

/// What a code means here. Nothing in it has to be escaped in XML.
fn default_message(code: &str) -> &'static str {
    match code {
        "SignatureDoesNotMatch" => {
            "the signature is wrong: the secret key is not that of the access key, or the request was changed on its way"
        }
        "InvalidAccessKeyId" => {
            "there is no such access key here; the gateway prints it, or reads it from --credentials"
        }
        "NoSuchKey" => "there is no object with this key",
        "NoSuchBucket" => "there is no such bucket here; the gateway prints the name of the only one",
        "BucketAlreadyOwnedByYou" => "the bucket exists",
        "PreconditionFailed" => "the object is not the one that a condition of the request names",
        "InvalidRange" => "the range begins behind the end of the object",
        "InvalidBucketName" => "a bucket cannot have this name",
        "KeyTooLongError" => "the key is longer than 1,024 bytes",
        "NoSuchUpload" => {
            "there is no such upload: it was completed or given up, or the gateway was started again"
        }
        "InvalidPartOrder" => "the parts are not in the order of their numbers",
        "EntityTooSmall" => "a part other than the last one is smaller than 5 MiB",
        "IncompleteBody" => "the content breaks off",
        "InvalidURI" => "the address of the request cannot be parsed",
        "RequestTimeTooSkewed" => {
            "the time of the request and that of this machine differ by more than 15 minutes"
        }
        "NotImplemented" => "this is not offered here",
        // Codes of 's3s', of which later versions have others.
        _ => "the request cannot be carried out",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_without_a_message_get_one() {
        let bare = "<Error><Code>SignatureDoesNotMatch</Code><RequestId>1</RequestId></Error>";
        let explained = add_message(bare);
        let starts = "<Error><Code>SignatureDoesNotMatch</Code><Message>the signature is wrong";
        assert!(explained.as_ref().is_some_and(|xml| xml.starts_with(starts)), "{explained:?}");
        assert!(explained.is_some_and(|xml| xml.ends_with("</Message><RequestId>1</RequestId></Error>")));
        for xml in ["", "<Error><Code>NoSuchKey</Code><Message>m</Message></Error>", "<Error><Code>", "text"]
        {
            assert_eq!(add_message(xml), None, "{xml}");
        }
    }

    #[test]
    fn only_failures_are_changed() {
        let xml = "<Error><Code>NoSuchKey</Code></Error>";
        for (status, is_explained) in [(200, false), (304, false), (403, true), (404, true), (500, true)] {
            let mut answer = Response::new(Body::from(xml.to_owned()));
            *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
            answer.headers_mut().insert(CONTENT_LENGTH, xml.len().into());
            let answer = explain_failure(answer);
            let body = answer.body().bytes().unwrap_or_default();
            assert_eq!(body != xml.as_bytes(), is_explained, "{status}");
            assert_eq!(answer.headers().contains_key(CONTENT_LENGTH), !is_explained, "{status}");
        }
    }
}
