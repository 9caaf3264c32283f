//! Heads of requests to a gateway for WebDAV, its XML, and files of names and passwords: what passes the guard leads to this
//! server, and has no range whose sum overflows.

#![no_main]

use hyper::Request;
use libfuzzer_sys::fuzz_target;
use vellum_serve::credentials::GatewayCredentials;
use vellum_serve::webdav::guard::{DavGuard, check_xml};

/// Of the user below: `fuzz:fuzz-fuzz-fuzz`.
const AUTHORIZATION: &str = "Basic ZnV6ejpmdXp6LWZ1enotZnV6eg==";

fuzz_target!(|text: &str| {
    let _ = GatewayCredentials::parse(text);
    let _ = check_xml(text.as_bytes());
    let mut lines = text.lines();
    let Some((method, path)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:80");
    request = request.header("authorization", AUTHORIZATION);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let Ok(request) = request.body(()) else { return };
    let mut head = request.into_parts().0;
    let users = GatewayCredentials::parse("fuzz fuzz-fuzz-fuzz").expect("it is well formed");
    if DavGuard::new(users, true).check_request(&mut head).is_err() {
        return;
    }
    if matches!(head.method.as_str(), "COPY" | "MOVE") {
        assert!(head.headers["destination"].as_bytes().starts_with(b"/"));
    }
    if let Some(range) = head.headers.get("range") {
        let range = range.to_str().expect("it is text");
        let numbers = range.trim_start_matches("bytes=").split('-').filter(|number| !number.is_empty());
        let sum = numbers.map(|number| number.parse::<u64>().expect("it is a number")).try_fold(1, u64::checked_add);
        assert!(sum.is_some() && !range.contains(','));
    }
});
