//! What is checked of a request before `s3s` sees it.

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use crate::request_sender::{RequestRefusal, check_sender, refuse, single_value};

/// Fails unless the request comes from this machine and is signed in version 4. Whether the signature holds is seen later: this
/// keeps out what `s3s` would read, or answer, by less.
pub fn check_request(head: &Parts) -> Result<(), RequestRefusal> {
    check_sender(&head.headers)?;
    let kind = single_value(&head.headers, &CONTENT_TYPE)?.unwrap_or_default();
    // Forms of browsers: their content would be read into memory.
    let form = b"multipart/";
    let is_form = kind.get(..form.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(form));
    if head.method == Method::POST && is_form {
        return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "forms cannot be uploaded"));
    }
    let query = head.uri.query().unwrap_or_default();
    let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
    // Signatures of version 2 say nothing of the content, and may hold for ever.
    if has("Signature") || has("AWSAccessKeyId") {
        return Err(refuse(StatusCode::FORBIDDEN, "requests have to be signed by version 4"));
    }
    match single_value(&head.headers, &AUTHORIZATION)? {
        None if has("X-Amz-Signature") => Ok(()),
        None => Err(refuse(StatusCode::FORBIDDEN, "requests have to be signed")),
        Some(shown) if !shown.starts_with(b"AWS4-HMAC-SHA256 ") => {
            Err(refuse(StatusCode::FORBIDDEN, "requests have to be signed by version 4"))
        }
        // Without it, the content would be read before the signature is checked.
        Some(_) if !head.headers.contains_key(HeaderName::from_static("x-amz-content-sha256")) => {
            Err(refuse(StatusCode::BAD_REQUEST, "x-amz-content-sha256 is missing"))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use hyper::Request;

    use super::*;

    const SIGNED: [(&str, &str); 2] =
        [("authorization", "AWS4-HMAC-SHA256 Credential=a"), ("x-amz-content-sha256", "00")];

    fn check(method: &str, uri: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(uri).header("host", "127.0.0.1:80");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let head = request.body(()).unwrap().into_parts().0;
        check_request(&head).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_what_is_signed_by_version_4_passes() {
        assert_eq!(check("GET", "/main", &SIGNED), 200);
        assert_eq!(check("GET", "/main?X-Amz-Signature=00", &[]), 200);
        let refused: [(&str, &[(&str, &str)]); 6] = [
            ("/main", &[]),
            ("/main?list-type=2&x=X-Amz-Signature", &[]),
            ("/main", &[("authorization", "AWS a:b")]),
            ("/main", &[("authorization", "Basic YTpi")]),
            ("/main?AWSAccessKeyId=a&Signature=b&Expires=1", &[]),
            ("/main?Signature=b", &SIGNED),
        ];
        for (uri, headers) in refused {
            assert_eq!(check("GET", uri, headers), 403, "{uri} {headers:?}");
        }
        assert_eq!(check("GET", "/main", &SIGNED[..1]), 400);
        assert_eq!(check("GET", "/main", &[SIGNED[0], SIGNED[0], SIGNED[1]]), 400);
        assert_eq!(
            check("POST", "/main", &[SIGNED[0], SIGNED[1], ("content-type", "Multipart/form-data")]),
            405
        );
        assert_eq!(check("GET", "/main", &[SIGNED[0], SIGNED[1], ("origin", "http://evil.com")]), 403);
    }
}
