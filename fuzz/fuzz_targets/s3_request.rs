//! Heads of requests to a gateway for S3, keys and places in listings: what passes the guard is signed in version 4, a key that
//! is a path does not lead out of the tree, and a place is read as it was written.

#![no_main]

use std::path::Component;

use hyper::Request;
use libfuzzer_sys::fuzz_target;
use vellum_serve::s3::guard::check_request;
use vellum_serve::s3::keys::{KEY_MAX, ObjectKey};
use vellum_serve::s3::listing::KeyPosition;

fuzz_target!(|text: &str| {
    if let Ok(key) = ObjectKey::parse(text) {
        assert!(key.as_str() == text && text.len() <= KEY_MAX);
        assert!(key.path().components().all(|part| matches!(part, Component::Normal(_))));
        assert!(key.path().components().next().is_some_and(|first| first.as_os_str() != ".vellum"));
        // One key is one path: with the slash of a directory it is the key again.
        let slash = if key.is_dir() { "/" } else { "" };
        assert_eq!(format!("{}{slash}", key.path().to_str().expect("it is text")), text);
    }
    if let Some(position) = KeyPosition::from_token(text) {
        assert_eq!(KeyPosition::from_token(&position.to_token()), Some(position));
    }
    let mut lines = text.lines();
    let Some((method, path)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:80");
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(()) else { return };
    let head = request.into_parts().0;
    if check_request(&head).is_err() {
        return;
    }
    match head.headers.get("authorization") {
        Some(shown) => assert!(shown.as_bytes().starts_with(b"AWS4-HMAC-SHA256 ")),
        None => assert!(head.uri.query().is_some_and(|query| query.contains("X-Amz-Signature"))),
    }
});
