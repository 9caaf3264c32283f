//! A volume with some snapshots, and the program that serves it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use vellum_library::{Checkout, Volume, VolumeOptions};

/// A program that serves a volume until this is dropped.
pub struct Stand {
    child: Child,
    pub port: u16,
    pub token: String,
    pub first: String,
    pub second: String,
    dir: TempDir,
}

/// What was answered.
pub struct Reply {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}{}", self.headers, String::from_utf8_lossy(&self.body));
        self
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Stand {
    /// Two snapshots: the second changes a text, adds a binary file and removes another one.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let options = VolumeOptions { plain: true, ..VolumeOptions::default() };
        drop(Volume::create_with(&data, &options).unwrap());
        let checkout = Checkout::open(&data).unwrap();
        fs::create_dir(data.join("dir")).unwrap();
        fs::write(data.join("dir/text"), "one\ntwo\nthree\n").unwrap();
        fs::write(data.join("gone"), "gone").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", data.join("link")).unwrap();
        let first = checkout.create_snapshot("first <script>alert(1)</script>").unwrap().id.to_string();
        fs::write(data.join("dir/text"), "one\n2\nthree\n").unwrap();
        fs::write(data.join("bytes"), [0, 1, 2, 255].repeat(1000)).unwrap();
        fs::remove_file(data.join("gone")).unwrap();
        let second = checkout.create_snapshot("second").unwrap().id.to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_vellum-serve"))
            .args(["web", data.to_str().unwrap(), "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = ready["address"].as_str().unwrap();
        let (place, token) =
            address.strip_prefix("http://127.0.0.1:").unwrap().split_once("/#token=").unwrap();
        let (port, token) = (place.parse().unwrap(), token.to_owned());
        Self { child, port, token, first, second, dir }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// The status of the answer to a question; the answer itself is not waited for.
    pub fn ask_status(&self, question: &str) -> u16 {
        let mut stream = self.connect();
        let head = format!("GET /api/v1/{question} HTTP/1.1\r\n{}\r\n{}\r\n\r\n", self.host(), self.bearer());
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes as they are, and reads until the server closes.
    pub fn send(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect();
        // What is refused may be closed before all of it was sent.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
        let headers = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Reply { status, headers, body: bytes.get(end + 4..).unwrap_or_default().to_vec() }
    }

    /// A request with these lines of headers.
    pub fn request(&self, line: &str, headers: &[&str], body: &[u8]) -> Reply {
        let mut head = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        headers.iter().for_each(|header| head.extend([header, "\r\n"]));
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.send(&[head.as_bytes(), body].concat())
    }

    pub fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}", self.port)
    }

    pub fn bearer(&self) -> String {
        format!("Authorization: Bearer {}", self.token)
    }

    /// A question to the API, with the token.
    pub fn ask(&self, question: &str) -> Reply {
        self.request(&format!("GET /api/v1/{question}"), &[&self.host(), &self.bearer()], b"")
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
