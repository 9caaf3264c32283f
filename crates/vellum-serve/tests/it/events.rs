//! What pages are told without asking.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;
use vellum_library::Checkout;

use crate::stand::Stand;

/// Most pages that are told at once.
const LISTENERS: usize = 16;

/// A stream of events.
struct Listening {
    lines: BufReader<TcpStream>,
}

impl Listening {
    /// Begins one, whose answer has this status.
    fn begin(stand: &Stand, question: &str, status: u16) -> Self {
        let mut stream = stand.connect();
        let head =
            format!("GET /api/v1/{question} HTTP/1.1\r\n{}\r\n{}\r\n\r\n", stand.host(), stand.bearer());
        stream.write_all(head.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{line}");
        Self { lines }
    }

    /// The next event of a kind; None: the stream has ended. Lines between those of events are of the chunks and comments.
    fn next(&mut self, kind: &str) -> Option<Value> {
        let mut is_wanted = false;
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("event", name)) => is_wanted = name == kind,
                Some(("data", data)) if is_wanted => return Some(serde_json::from_str(data).unwrap()),
                Some(_) | None => {}
            }
        }
    }

    /// What is left until the end, which has to come in order.
    fn read_end(mut self) -> String {
        let mut rest = Vec::new();
        match self.lines.read_to_end(&mut rest) {
            Ok(_) => String::from_utf8_lossy(&rest).into_owned(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => panic!("cut off"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn each_change_by_others_is_told() {
    let stand = Stand::start();
    let mut page = Listening::begin(&stand, "events", 200);
    let first = page.next("changed").unwrap();
    let checkout = Checkout::open(stand.data()).unwrap();
    fs::write(stand.data().join("new"), "new").unwrap();
    let third = checkout.create_snapshot("third").unwrap().id;
    let mut changed = page.next("changed").unwrap();
    while changed["snapshots"] == first["snapshots"] || changed["refs"] == first["refs"] {
        changed = page.next("changed").unwrap();
    }
    // A tag is no snapshot.
    let volume = vellum_library::Volume::open(stand.data()).unwrap();
    let before = changed;
    volume.tag_snapshot("kept", third).unwrap();
    let mut tagged = page.next("changed").unwrap();
    while tagged["refs"] == before["refs"] {
        tagged = page.next("changed").unwrap();
    }
    assert_eq!(tagged["snapshots"], before["snapshots"]);
    // Whoever comes later is told the state, and knows it from another connection.
    assert_eq!(Listening::begin(&stand, "events", 200).next("changed").unwrap(), tagged);
}

#[test]
fn what_agents_ask_and_what_runs_is_told_at_once() {
    let stand = Stand::start();
    let mut page = Listening::begin(&stand, "events", 200);
    assert_eq!(page.next("approvals").unwrap()["requests"], serde_json::json!([]));
    assert_eq!(page.next("job").unwrap()["job"], Value::Null);
}

#[test]
fn the_token_is_shown_as_for_everything() {
    let stand = Stand::start();
    let line = "GET /api/v1/events";
    stand.request(line, &[&stand.host()], b"").expect(401);
    stand.request(&format!("{line}?token={}", stand.token), &[&stand.host()], b"").expect(401);
    let other = "Sec-Fetch-Site: cross-site";
    stand.request(line, &[&stand.host(), &stand.bearer(), other], b"").expect(403);
    stand.ask(&format!("events?token={}", stand.token)).expect(400);
    stand.request("HEAD /api/v1/events", &[&stand.host(), &stand.bearer()], b"").expect(404);
}

#[test]
fn pages_that_listen_are_bounded_and_leave_room_for_others() {
    let stand = Stand::start();
    let mut listening: Vec<_> = (0..LISTENERS).map(|_| Listening::begin(&stand, "events", 200)).collect();
    let refused = stand.ask("events").expect(503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    stand.ask("volume").expect(200);
    // Each is told, the last one, too.
    listening.last_mut().unwrap().next("changed").unwrap();
    drop(listening.pop());
    // That it has left is seen when it is told something, or when the connection's end arrives.
    while stand.ask_status("events") != 200 {
        stand.ask("volume").expect(200);
    }
}

#[test]
fn streams_end_when_the_server_does() {
    let mut stand = Stand::start();
    let mut page = Listening::begin(&stand, "events", 200);
    page.next("changed").unwrap();
    assert!(Command::new("kill").args(["-TERM", &stand.pid().to_string()]).status().unwrap().success());
    // The last chunk, which has no bytes: the end is one, and no broken connection.
    assert!(page.read_end().ends_with("0\r\n\r\n"));
    assert!(stand.wait().success());
}
