//! One test for each threat.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::stand::Stand;

#[test]
fn other_machines_cannot_be_let_in() {
    let stand = Stand::start();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let output = Command::new(env!("CARGO_BIN_EXE_vellum-serve"))
            .args(["web", stand.data().to_str().unwrap(), "--listen", listen])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{listen}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("ssh -L"), "{listen}");
    }
}

#[test]
fn the_token_is_in_no_programs_arguments() {
    let stand = Stand::start();
    let words = fs::read(format!("/proc/{}/cmdline", stand.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&words).contains(&stand.token));
}

#[test]
fn without_the_token_nothing_of_the_volume_is_told() {
    let stand = Stand::start();
    let host = stand.host();
    for question in ["volume", "history", "history/rows", "nothing", "tree/x"] {
        for wrong in [
            "X-None: 1".to_owned(),
            format!("Authorization: Bearer {}", "0".repeat(64)),
            format!("Authorization: Bearer {}", &stand.token[..63]),
            format!("Cookie: token={}", stand.token),
        ] {
            stand.request(&format!("GET /api/v1/{question}"), &[&host, &wrong], b"").expect(401);
        }
    }
    let query = format!("GET /api/v1/volume?token={}", stand.token);
    stand.request(&query, &[&host], b"").expect(401);
    stand.ask(&format!("volume?token={}", stand.token)).expect(400);
    stand.ask("volume").expect(200);
}

#[test]
fn hosts_and_origins_of_others_are_refused_before_anything_else() {
    let stand = Stand::start();
    let bearer = stand.bearer();
    for path in ["/", "/app.js", "/api/v1/volume", "/d/x/y"] {
        let line = format!("GET {path}");
        for host in ["evil.com", "127.0.0.1.evil.com", "127.0.0.1", "127.1:80"] {
            stand.request(&line, &[&format!("Host: {host}"), &bearer], b"").expect(403);
        }
        stand.request(&line, &[&bearer], b"").expect(400);
        stand.request(&line, &[&stand.host(), &stand.host(), &bearer], b"").expect(400);
        for other in ["Origin: null", "Origin: http://evil.com", "Sec-Fetch-Site: cross-site"] {
            stand.request(&line, &[&stand.host(), &bearer, other], b"").expect(403);
        }
    }
    let own = format!("Origin: http://127.0.0.1:{}", stand.port);
    let reply = stand.request("GET /api/v1/volume", &[&stand.host(), &bearer, &own], b"").expect(200);
    assert!(!reply.headers.to_lowercase().contains("access-control"), "{}", reply.headers);
}

#[test]
fn what_other_sites_can_send_changes_nothing() {
    let stand = Stand::start();
    let (host, bearer) = (stand.host(), stand.bearer());
    let body = format!(r#"{{"snapshot":"{}","path":"dir/text"}}"#, stand.first);
    let post = |kind: &str, body: &[u8]| {
        let kind = format!("Content-Type: {kind}");
        stand.request("POST /api/v1/tickets", &[&host, &bearer, &kind], body)
    };
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "APPLICATION"]
    {
        post(kind, body.as_bytes()).expect(415);
    }
    post("application/json", &[b"\xef\xbb\xbf", body.as_bytes()].concat()).expect(400);
    post("application/json", &vec![b' '; (1 << 20) + 1]).expect(413);
    post("application/json", br#"{"snapshot":"x","path":"a"}"#).expect(400);
    post("application/json", body.as_bytes()).expect(200);
    for method in ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        stand.request(&format!("{method} /api/v1/volume"), &[&host, &bearer], b"").expect(405);
    }
}

#[test]
fn a_page_that_only_shows_changes_nothing() {
    // Without the command line, nothing can be changed.
    let stand = Stand::start();
    let volume = stand.ask("volume").expect(200).json();
    assert_eq!(volume["capabilities"]["read_only"], true);
    let (host, bearer) = (stand.host(), stand.bearer());
    let kind = "Content-Type: application/json";
    let body = format!(r#"{{"target":"{}"}}"#, stand.first);
    for path in [
        "plans/restore",
        "plans/fork",
        "plans/tag",
        "plans/untag",
        "plans/pin",
        "plans/unpin",
        "plans/note",
        "plans/forget",
        "plans/gc",
        "plans/0123456789abcdef/run",
        "approvals/0123456789abcdef",
        "jobs/verify",
    ] {
        let line = format!("POST /api/v1/{path}");
        stand.request(&line, &[&host, kind], body.as_bytes()).expect(401);
        let other = "Origin: http://evil.com";
        stand.request(&line, &[&host, &bearer, kind, other], body.as_bytes()).expect(403);
        stand.request(&line, &[&host, &bearer, "Content-Type: text/plain"], body.as_bytes()).expect(415);
        let refused = stand.request(&line, &[&host, &bearer, kind], body.as_bytes()).expect(403).json();
        assert!(refused["error"]["hint"].as_str().unwrap().contains("--read-only"), "{path}: {refused}");
        stand.request(&format!("GET /api/v1/{path}?x=1"), &[&host, &bearer], b"").expect(
            // The last one can be asked about, without parameters.
            if path == "jobs/verify" { 400 } else { 404 },
        );
    }
    assert_eq!(stand.ask("approvals").expect(200).json()["requests"], serde_json::json!([]));
}

#[test]
fn the_page_cannot_run_what_is_not_its_own() {
    let stand = Stand::start();
    let reply = stand.request("GET /", &[&stand.host()], b"").expect(200);
    let policy = reply.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert!(reply.header("set-cookie").is_none());
}

#[test]
fn content_is_shown_as_nothing() {
    let stand = Stand::start();
    let reply = stand.ask(&format!("content/{}?path=dir/text", stand.first)).expect(200);
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
    assert_eq!(reply.header("content-disposition"), Some("attachment"));
    assert!(reply.header("content-security-policy").unwrap().starts_with("sandbox"));
    assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
    assert_eq!(reply.body, b"one\ntwo\nthree\n");
}

#[test]
fn a_ticket_is_good_for_one_download() {
    let stand = Stand::start();
    let body = format!(r#"{{"snapshot":"{}","path":"bytes"}}"#, stand.second);
    let headers = [stand.host(), stand.bearer(), "Content-Type: application/json".into()];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let ticket = stand.request("POST /api/v1/tickets", &headers, body.as_bytes()).expect(200).json();
    let line = format!("GET /d/{}/bytes", ticket["ticket"].as_str().unwrap());
    let reply = stand.request(&line, &[&stand.host()], b"").expect(200);
    assert_eq!(reply.body, [0, 1, 2, 255].repeat(1000));
    stand.request(&line, &[&stand.host()], b"").expect(410);
    stand.request("GET /d/0000/bytes", &[&stand.host()], b"").expect(410);
}

#[test]
fn nothing_leads_out_of_a_snapshot() {
    let stand = Stand::start();
    for path in ["../data", "%2e%2e/x", "dir/../../x", "/etc/passwd", "a%00b", "dir//text", "dir/."] {
        for question in ["tree", "entry", "content", "versions"] {
            stand.ask(&format!("{question}/{}?path={path}", stand.first)).expect(400);
        }
    }
    // A symlink is shown, and not followed.
    stand.ask(&format!("content/{}?path=link", stand.first)).expect(400);
    stand.ask(&format!("tree/{}?path=link", stand.first)).expect(400);
    stand.ask(&format!("content/{}?path=link/x", stand.first)).expect(404);
    let entry = stand.ask(&format!("entry/{}?path=link", stand.first)).expect(200).json();
    assert_eq!(entry["file"]["target"]["path"], "/etc/passwd");
    for path in ["/../Cargo.toml", "/%2e%2e/Cargo.toml", "/page/index.html", "//", "/index.html/"] {
        stand.request(&format!("GET {path}"), &[&stand.host()], b"").expect(404);
    }
}

#[test]
fn clients_that_say_nothing_do_not_keep_others_out() {
    let stand = Stand::start();
    let silent: Vec<_> = (0..40).map(|_| stand.connect()).collect();
    let mut slow = stand.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    stand.ask("volume").expect(200);
    // The one that never ends its request is told to go.
    let mut answer = Vec::new();
    let _ = slow.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    drop(silent);
    stand.request("GET /", &[&stand.host(), &format!("X-Long: {}", "x".repeat(20 << 10))], b"").expect(431);
}

#[test]
fn token_files_are_checked_at_the_start() {
    use std::os::unix::fs::PermissionsExt;
    let stand = Stand::start();
    let file = stand.data().join("token");
    fs::write(&file, "0".repeat(64)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vellum-serve"))
        .args(["web", stand.data().to_str().unwrap(), "--token-file", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("0644"));
}
