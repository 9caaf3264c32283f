//! The part of HTTP/1.1 that S3 clients use.

use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;

use super::S3Failure;

/// Longest head of a request, bytes.
const HEAD_MAX: usize = 64 << 10;

/// A request with its body.
#[derive(Debug, Clone)]
pub(super) struct HttpRequest {
    pub method: String,
    pub path: String,
    pub query: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A reply.
pub(super) struct HttpReply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// A length that is announced although no body is sent.
    pub announced: Option<usize>,
}

impl HttpRequest {
    /// Reads a request; None at the end of the connection. `reader` reads what comes over `stream`, and keeps what it has read
    /// of the next one.
    pub fn read_from(reader: &mut impl BufRead, mut stream: &TcpStream) -> io::Result<Option<Self>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            // A head without an end must not take memory without one.
            let left = HEAD_MAX.saturating_sub(head.len()) as u64;
            if reader.by_ref().take(left).read_until(b'\n', &mut head)? == 0 {
                return Ok(None);
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(':'))
            // The case of the names of headers means nothing in HTTP.
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut request =
            Self { method, path: decode_percents(path), query: query.to_owned(), headers, body: Vec::new() };
        // Clients wait for this answer before they send a long body.
        if request.header("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        // S3 requires the length of each body, so that none comes in chunks.
        let len = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        request.body.resize(len, 0);
        reader.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether the request names this access key. The signature itself is not checked.
    pub fn is_signed_with(&self, access_key: &str) -> bool {
        self.header("authorization").is_some_and(|value| value.contains(&format!("Credential={access_key}/")))
    }

    /// The value of a parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let parts = self.query.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
        parts.into_iter().find(|(known, _)| *known == name).map(|(_, value)| decode_percents(value))
    }

    /// The number of the part that is uploaded.
    pub fn part_number(&self) -> Option<u32> {
        self.parameter("partNumber")?.parse().ok()
    }

    /// The method, or `LIST`. Multipart uploads are begun and finished by `POST`.
    pub fn operation(&self) -> &'static str {
        match self.method.as_str() {
            "GET" if self.parameter("list-type").is_some() => "LIST",
            "GET" => "GET",
            "HEAD" => "HEAD",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            "POST" => "POST",
            _ => "OTHER",
        }
    }

    /// The key without the bucket, or the prefix of a listing.
    pub fn key(&self) -> String {
        match self.operation() {
            "LIST" => self.parameter("prefix").unwrap_or_default(),
            _ => self.path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key).to_owned(),
        }
    }

    /// The first and the last byte of the requested range.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }

    pub fn without_range(&self) -> Self {
        let mut other = self.clone();
        other.headers.retain(|(name, _)| name != "range");
        other
    }

    pub fn with_later_range(&self, by: u64) -> Self {
        let mut other = self.without_range();
        if let Some((first, last)) = self.range() {
            let last = last.map_or(String::new(), |last| (last + by).to_string());
            other.headers.push(("range".to_owned(), format!("bytes={}-{last}", first + by)));
        }
        other
    }
}

impl HttpReply {
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), announced: None }
    }

    pub fn with_body(status: u16, body: Vec<u8>) -> Self {
        Self { body, ..Self::new(status) }
    }

    pub fn for_error(status: u16, code: &str) -> Self {
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>by script</Message></Error>");
        Self::with_body(status, body.into_bytes())
    }

    pub fn for_failure(failure: &S3Failure) -> Self {
        let mut reply = if failure.code.is_empty() {
            Self::new(failure.status)
        } else {
            Self::for_error(failure.status, failure.code)
        };
        reply.headers.clone_from(&failure.headers);
        reply
    }

    pub fn for_redirect(to: &str) -> Self {
        Self { headers: vec![("location", to.to_owned())], ..Self::new(307) }
    }

    pub fn write_to(&self, stream: &mut TcpStream) -> io::Result<()> {
        self.write_beginning(stream, usize::MAX)
    }

    /// Announces the whole body, and sends its first bytes.
    pub fn write_beginning(&self, stream: &mut TcpStream, len: usize) -> io::Result<()> {
        let announced = self.announced.unwrap_or(self.body.len());
        let mut bytes = self.format_head(&format!("content-length: {announced}\r\n"));
        // A reply to `HEAD` has the length of an object and no body.
        if self.announced.is_none() {
            bytes.extend_from_slice(&self.body[..len.min(self.body.len())]);
        }
        stream.write_all(&bytes)
    }

    /// Sends a head without the length of the body.
    pub fn write_unbounded_head(&self, stream: &mut TcpStream) -> io::Result<()> {
        // Without a length, the body ends where the connection does.
        stream.write_all(&self.format_head("connection: close\r\n"))
    }

    fn format_head(&self, framing: &str) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Scripted\r\n{framing}", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

fn decode_percents(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        // A percent sign without two digits stands for itself.
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
