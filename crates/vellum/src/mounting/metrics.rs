//! Figures of a mount over HTTP, for Prometheus, on the page `/metrics`, and its condition, for whatever watches it, on
//! `/health`. Nothing but `GET` and `HEAD` reaches them.
//!
//! Invariant: a request changes nothing and costs little: one at a time, requests of [`REQUEST_MAX`] bytes within
//! [`PATIENCE`]. The address is of this machine alone unless it was typed otherwise. Deliberately absent: encryption and
//! passwords; who wants figures elsewhere puts a proxy before it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use vellum_host::MetricsExposition;
use vellum_host::process::ProcessStat;

use crate::error::{CliError, Result};

/// Longest request, bytes: far above what any scraper sends.
const REQUEST_MAX: usize = 8 << 10;

/// How long one request may take in all.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the pages show, made anew for each request.
pub struct MetricsPages {
    /// The text of `/metrics`.
    pub figures: Box<dyn Fn() -> String + Send>,
    /// What is wrong, a line each. `/health` answers with 200 if there is nothing, and with 503 and the lines otherwise.
    pub problems: MountProblems,
}

/// Lists what is wrong with a mount.
pub type MountProblems = Box<dyn Fn() -> Vec<String> + Send>;

/// Where figures are to be had, as typed: `PORT`, `:PORT` or `ADDRESS:PORT`. Without an address it is the loopback.
pub fn parse_listen_address(typed: &str) -> Result<SocketAddr, String> {
    let port = typed.strip_prefix(':').unwrap_or(typed).parse().ok();
    port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        // The standard library parses numeric addresses only, and no other name is worth a question to a resolver.
        .or_else(|| typed.replace("localhost:", "127.0.0.1:").parse().ok())
        .ok_or_else(|| "write a port like 9567, or an address like 0.0.0.0:9567 or [::1]:9567".into())
}

/// Writes what this process uses of the machine, under the names that other exporters use.
pub fn expose_process_metrics(out: &mut MetricsExposition) {
    // Without /proc the page lacks these figures, and has all others.
    let Ok(stat) = ProcessStat::read_own() else { return };
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    out.write_counter("process_cpu_seconds_total", "", stat.processor_ticks() as f64 / ticks);
    let resident = stat.resident_pages() * rustix::param::page_size() as u64;
    out.write_gauge("process_resident_memory_bytes", "", resident);
}

/// Answers at an address, in a thread of its own, as long as the process lives. Returns the address, with the port
/// that the system chose for port 0.
pub fn serve_metrics(address: SocketAddr, pages: MetricsPages) -> Result<SocketAddr> {
    let failed = |error: io::Error| CliError::io_error("answer at", address.to_string())(error);
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let answer = move || {
        for stream in listener.incoming() {
            match stream {
                // The client may be gone.
                Ok(stream) => drop(serve_connection(stream, &pages)),
                // Descriptors may be scarce, and trying again at once would only fail again.
                Err(_) => std::thread::sleep(PATIENCE),
            }
        }
    };
    std::thread::Builder::new().name("vellum-metrics".into()).spawn(answer).map_err(failed)?;
    Ok(bound)
}

fn serve_connection(mut stream: TcpStream, pages: &MetricsPages) -> io::Result<()> {
    // A scraper that does not read must not keep the only thread.
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request_head(&mut stream)?;
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let (status, body, with_body) = match words.as_slice() {
        [method @ (b"GET" | b"HEAD"), path, version] if version.starts_with(b"HTTP/1.") => {
            // A query is ignored: Prometheus sends one if its configuration has parameters.
            let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
            let (status, body) = match path {
                b"/metrics" => ("200 OK", (pages.figures)()),
                b"/health" => format_health(&(pages.problems)()),
                b"/" => ("200 OK", "figures of a vellum mount: /metrics; its condition: /health\n".into()),
                _ => ("404 Not Found", "there are only /metrics and /health\n".into()),
            };
            // HTTP requires that HEAD is answered with the length of the body, and without the body.
            (status, body, *method == b"GET")
        }
        [_, _, version] if version.starts_with(b"HTTP/1.") => {
            ("405 Method Not Allowed", "figures can only be read\n".into(), true)
        }
        _ => ("400 Bad Request", String::new(), true),
    };
    // One connection is served at a time: it ends with its answer.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if with_body {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// The answer of `/health`.
fn format_health(problems: &[String]) -> (&'static str, String) {
    match problems {
        [] => ("200 OK", "ok\n".into()),
        some => ("503 Service Unavailable", some.iter().map(|problem| format!("{problem}\n")).collect()),
    }
}

/// The head of a request.
fn read_request_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let end = Instant::now() + PATIENCE;
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        // The time limit counts for the whole request: a client that sends a byte at a time is cut off, too.
        if left.is_zero() || request.len() > REQUEST_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => request.extend_from_slice(buffer.get(..read).unwrap_or_default()),
        }
    }
    Ok(request)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn ask(request: &[u8]) -> String {
        let pages = MetricsPages {
            figures: Box::new(|| "figure 1\n".into()),
            problems: Box::new(|| vec!["the disk is full".into(), "the store is away".into()]),
        };
        let address = serve_metrics(parse_listen_address("0").unwrap(), pages).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        // What was sent in vain may reset the connection.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn addresses_are_of_this_machine_unless_typed_otherwise() {
        for (typed, meant) in [
            ("9567", "127.0.0.1:9567"),
            (":9567", "127.0.0.1:9567"),
            ("localhost:1", "127.0.0.1:1"),
            ("0.0.0.0:9567", "0.0.0.0:9567"),
            ("[::1]:9567", "[::1]:9567"),
        ] {
            assert_eq!(parse_listen_address(typed).unwrap().to_string(), meant);
        }
        for wrong in ["", ":", "x", "1.2.3.4", "99999", "host:1"] {
            assert!(parse_listen_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn figures_are_read_and_nothing_else_is_possible() {
        let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nfigure 1\n"),
            "{answer}"
        );
        assert!(answer.contains("Content-Length: 9\r\n"));
        let head = ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 9\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(b"GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    }

    #[test]
    fn a_request_without_end_is_cut_off() {
        let mut request = b"GET /metrics HTTP/1.1\r\n".to_vec();
        request.extend(std::iter::repeat_n(b'x', 4 * REQUEST_MAX));
        assert!(!ask(&request).contains("figure"));
    }
}
