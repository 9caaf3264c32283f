#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Request;

use super::*;

const USERS: &str = "ann correct-horse-1\nbob other-horse-22 read";

fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(user))
}

/// The head of a request after it was checked, or the status of the refusal.
fn check(can_write: bool, line: &str, headers: &[(&str, &str)]) -> Result<Parts, u16> {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut head = request.body(()).unwrap().into_parts().0;
    let guard = DavGuard::new(GatewayCredentials::parse(USERS).unwrap(), can_write);
    guard.check_request(&mut head).map_err(|refusal| refusal.status.as_u16())?;
    Ok(head)
}

fn status(line: &str, more: &[(&str, &str)]) -> u16 {
    let user = basic("ann:correct-horse-1");
    let mut headers = vec![("host", "127.0.0.1:80"), ("authorization", user.as_str())];
    headers.extend(more);
    check(true, line, &headers).err().unwrap_or(200)
}

#[test]
fn only_known_users_come_in_and_only_writers_write() {
    let ask = |can_write, line, user: &str| {
        let user = basic(user);
        check(can_write, line, &[("host", "localhost"), ("authorization", &user)]).err()
    };
    for user in ["ann:correct-horse-1", "bob:other-horse-22"] {
        assert_eq!(ask(false, "GET /a", user), None);
    }
    assert_eq!(ask(true, "GET /a", "ann:other-horse-22"), Some(401));
    for line in ["PUT /a", "DELETE /a", "MKCOL /a", "PROPPATCH /a", "LOCK /a", "UNLOCK /a"] {
        assert_eq!(ask(true, line, "ann:correct-horse-1"), None, "{line}");
        assert_eq!(ask(true, line, "bob:other-horse-22"), Some(403), "{line}");
        assert_eq!(ask(false, line, "ann:correct-horse-1"), Some(403), "{line}");
    }
    for line in ["PATCH /a", "POST /a", "REPORT /a", "TRACE /a", "get /a"] {
        assert_eq!(ask(true, line, "ann:correct-horse-1"), Some(405), "{line}");
    }
    assert_eq!(check(true, "GET /", &[("host", "localhost")]).err(), Some(401));
}

#[test]
fn other_hosts_and_sites_are_refused() {
    let user = basic("ann:correct-horse-1");
    for host in ["127.0.0.1:1", "localhost:8080", "[::1]:1", "localhost"] {
        assert!(check(true, "GET /", &[("host", host), ("authorization", &user)]).is_ok(), "{host}");
    }
    for host in ["evil.com", "127.0.0.1.evil.com", "localhost.evil.com:1", "127.0.0.1:1.evil.com", "", "::1"]
    {
        let asked = check(true, "GET /", &[("host", host), ("authorization", &user)]);
        assert_eq!(asked.err(), Some(403), "{host}");
    }
    assert_eq!(check(true, "GET /", &[("authorization", &user)]).err(), Some(400));
    assert_eq!(status("GET /", &[("origin", "http://evil.com")]), 403);
    assert_eq!(status("GET /", &[("origin", "null")]), 403);
    assert_eq!(status("GET /", &[("origin", "http://127.0.0.1:80")]), 200);
    assert_eq!(status("PUT /a", &[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(status("GET /", &[("host", "127.0.0.1:80")]), 400);
}

#[test]
fn nothing_lists_or_removes_the_whole_tree_at_once() {
    assert_eq!(status("PROPFIND /", &[("depth", "infinity"), ("x-litmus", "1")]), 403);
    assert_eq!(status("PROPFIND /", &[]), 403);
    assert_eq!(status("PROPFIND /", &[("depth", "1")]), 200);
    assert_eq!(status("DELETE /", &[]), 403);
    assert_eq!(status("DELETE /a/..", &[]), 403);
    assert_eq!(status("DELETE //", &[]), 403);
    assert_eq!(status("MOVE /", &[("destination", "/a")]), 403);
}

#[test]
fn destinations_are_of_this_server_and_not_within_the_source() {
    let go = |method: &str, to: &str| status(&format!("{method} /a/b"), &[("destination", to)]);
    for method in ["COPY", "MOVE"] {
        for (to, expected) in [
            ("/c", 200),
            ("http://127.0.0.1:80/c", 200),
            ("/a/bc", 200),
            ("http://evil.com/c", 502),
            ("http://127.0.0.1:81/c", 502),
            ("/a", 403),
            ("/a/b/c", 403),
            ("/", 403),
            ("/a/..", 403),
            ("/%2e%2e/x", 400),
            ("c", 400),
            ("", 400),
        ] {
            assert_eq!(go(method, to), expected, "{method} {to}");
        }
        assert_eq!(status(&format!("{method} /a"), &[]), 400);
    }
}

#[test]
fn paths_that_lead_out_are_refused() {
    for path in ["/..", "/a/../..", "/%2e%2e/etc/passwd", "/a%00b", "/a%2Fb"] {
        assert_eq!(status(&format!("GET {path}"), &[]), 400, "{path}");
    }
}

#[test]
fn ranges_that_would_overflow_or_repeat_are_ignored() {
    let user = basic("ann:correct-horse-1");
    for (range, kept) in [
        ("bytes=0-3", true),
        ("bytes=3-", true),
        ("bytes=-3", true),
        ("bytes=0-18446744073709551615", false),
        ("bytes=0-1,0-1", false),
        ("bytes=-", false),
        ("bytes=+1-2", false),
        ("lines=0-3", false),
    ] {
        let headers = [("host", "localhost"), ("authorization", user.as_str()), ("range", range)];
        let head = check(true, "GET /a", &headers).unwrap();
        assert_eq!(head.headers.contains_key(RANGE), kept, "{range}");
    }
    assert_eq!(status("PUT /a", &[("content-range", "bytes 0-3/10")]), 400);
}

#[test]
fn xml_that_grows_or_goes_deep_is_refused() {
    assert!(check_xml(b"<?xml version=\"1.0\"?><propfind xmlns=\"DAV:\"><allprop/></propfind>").is_ok());
    assert!(check_xml(b"<!DOCTYPE x [<!ENTITY a \"b\">]><propfind>&a;</propfind>").is_err());
    assert!(check_xml(&b"<a>".repeat(2000)).is_err());
    assert!(check_xml(b"<\0a\0").is_err());
}
