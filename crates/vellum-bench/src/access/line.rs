//! One line of an access log, taken apart.
//!
//! Invariant: only a whole line is one. A line that was cut anywhere, also within a name that looks like the end of a
//! line, is none: quotes are followed from the first argument to the closing bracket.

use std::time::Duration;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoggedRequest<'a> {
    /// When it was answered, seconds since 1970.
    pub time: f64,
    /// The user who asked.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process that asked.
    pub pid: u32,
    /// What was asked.
    pub operation: &'a str,
    /// With what: the node first, names in quotes.
    pub arguments: &'a str,
    /// What came of it: `ok` with its details, or the error.
    pub outcome: &'a str,
    /// How long it took.
    pub took: Duration,
}

impl<'a> LoggedRequest<'a> {
    /// Reads a line; None if it is none, or not whole.
    #[must_use]
    pub fn parse_line(line: &'a str) -> Option<Self> {
        let (time, rest) = line.split_once(" [uid:")?;
        let (uid, rest) = rest.split_once(",gid:")?;
        let (gid, rest) = rest.split_once(",pid:")?;
        let (pid, rest) = rest.split_once("] ")?;
        let (operation, rest) = rest.split_once(" (")?;
        let (arguments, rest) = rest.split_at_checked(find_closing_bracket(rest)?)?;
        let (outcome, took) = rest.strip_prefix("): ")?.strip_suffix('>')?.rsplit_once(" <")?;
        // No outcome holds what a line ends with.
        let is_told =
            |field: &str| !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit() || b == b',');
        // Errors are in the log as `std::io::Error` prints them, with their number.
        let is_failure = outcome.contains(" (os error ") && outcome.ends_with(')') && !outcome.contains('<');
        let is_outcome = outcome == "ok" || outcome.strip_prefix("ok ").is_some_and(is_told) || is_failure;
        let is_word =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        // The first argument of each request is the number of a node. What has none was not written by a
        // mount.
        if !is_outcome || !is_word(operation) || split_node(arguments).parse::<u64>().is_err() {
            return None;
        }
        Some(Self {
            // `nan` and `inf` are numbers to the parser, too.
            time: time.parse().ok().filter(|time: &f64| time.is_finite())?,
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            pid: pid.parse().ok()?,
            operation,
            arguments,
            outcome,
            // Negative, infinite and far too large numbers are numbers to the parser, too; `from_secs_f64` would panic.
            took: Duration::try_from_secs_f64(took.parse().ok()?).ok()?,
        })
    }

    /// Whether it was done.
    #[must_use]
    pub fn is_successful(&self) -> bool {
        self.outcome == "ok" || self.outcome.starts_with("ok ")
    }

    /// The file that it was about: the node, and the name in it where one was given.
    #[must_use]
    pub fn requested_file(&self) -> &'a str {
        let node = split_node(self.arguments);
        let rest = self.arguments.get(node.len()..).unwrap_or_default();
        // The name of an extended attribute is not the name of a file.
        let name = rest.strip_prefix(",\"").filter(|_| !self.operation.ends_with("xattr"));
        let end = name.and_then(quoted_name_len).map(|len| node.len() + 2 + len);
        end.and_then(|end| self.arguments.get(..end)).unwrap_or(node)
    }
}

/// The file that a request was about, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedFile {
    /// The node.
    pub node: u64,
    /// The name in it, if it is a directory in which one was asked for.
    pub name: Option<Vec<u8>>,
}

impl RequestedFile {
    /// Takes apart what [`LoggedRequest::requested_file`] gave; None if it is nothing of the kind.
    #[must_use]
    pub fn parse_text(text: &str) -> Option<Self> {
        let node = split_node(text);
        let name = match text.get(node.len()..)? {
            "" => None,
            rest => Some(unescape_name(rest.strip_prefix(",\"")?.strip_suffix('"')?)?),
        };
        Some(Self { node: node.parse().ok()?, name })
    }
}

/// Undoes `escape_ascii`.
fn unescape_name(escaped: &str) -> Option<Vec<u8>> {
    let mut bytes = escaped.bytes();
    let mut name = Vec::new();
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'\\' => match bytes.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                // `escape_ascii` puts a backslash before quotes and before backslashes themselves.
                other => other,
            },
            other => other,
        });
    }
    Some(name)
}

/// What stands before the first comma.
fn split_node(arguments: &str) -> &str {
    arguments.split(',').next().unwrap_or_default()
}

/// Where the bracket closes that is open at the beginning: one in quotes does not.
fn find_closing_bracket(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        let next = rest.find(['"', ')'])?;
        match rest.as_bytes().get(next)? {
            b')' => return Some(at + next),
            _ => at += next + 1 + quoted_name_len(rest.get(next + 1..)?)?,
        }
    }
}

/// Bytes to behind the quote that ends a name; one after a backslash does not.
fn quoted_name_len(name: &str) -> Option<usize> {
    let mut bytes = name.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str =
        r#"1700000000.250000 [uid:5,gid:6,pid:7] lookup (1,"a\"): ok <1>.txt"): ok 9,0100644,12 <0.000120>"#;

    #[test]
    fn a_line_is_read_whatever_the_name_holds() {
        let request = LoggedRequest::parse_line(LINE).unwrap();
        assert_eq!((request.uid, request.gid, request.pid, request.operation), (5, 6, 7, "lookup"));
        assert_eq!(request.arguments, r#"1,"a\"): ok <1>.txt""#);
        assert_eq!(request.requested_file(), request.arguments);
        assert_eq!(request.outcome, "ok 9,0100644,12");
        assert!(request.is_successful());
        assert_eq!(request.took, Duration::from_micros(120));
        let failed = LINE.replace(": ok 9,0100644,12", ": No such file or directory (os error 2)");
        let failed = LoggedRequest::parse_line(&failed).unwrap();
        assert!(!failed.is_successful());
        assert_eq!(failed.requested_file(), request.arguments);
    }

    #[test]
    fn a_name_is_unescaped() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let text = format!("17,\"{}\"", all.escape_ascii());
        assert_eq!(RequestedFile::parse_text(&text), Some(RequestedFile { node: 17, name: Some(all) }));
        assert_eq!(RequestedFile::parse_text("17"), Some(RequestedFile { node: 17, name: None }));
        for broken in ["", "x", "17,", "17,\"", "17,\"a", "17,\"\\x1\"", "(others)"] {
            assert_eq!(RequestedFile::parse_text(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_file_is_a_node_or_a_name_in_it() {
        let file = |request: &str| {
            let line = format!("1.5 [uid:0,gid:0,pid:1] {request}: ok <0.1>");
            LoggedRequest::parse_line(&line).map(|request| request.requested_file().to_owned()).unwrap()
        };
        assert_eq!(file("read (2,4096,8192)"), "2");
        assert_eq!(file("statfs (1)"), "1");
        assert_eq!(file(r#"rename (2,"a,b",3,"c",0x1)"#), r#"2,"a,b""#);
        assert_eq!(file(r#"mkdir (2,"\"",0755,022)"#), r#"2,"\"""#);
        assert_eq!(file(r#"getxattr (2,"user.a",0)"#), "2");
        assert_eq!(file("setattr (2,mtime=now)"), "2");
    }

    #[test]
    fn no_cut_line_is_taken_for_a_whole_one() {
        for end in 0..LINE.len() {
            assert_eq!(LoggedRequest::parse_line(&LINE[..end]), None, "{}", &LINE[..end]);
        }
    }

    #[test]
    fn what_is_none_is_no_line() {
        for (right, wrong) in [
            ("lookup", "look up"),
            ("(1,", "(,"),
            ("1700000000.25", "nan"),
            ("ok 9", "ok  9"),
            ("0.00", "-0.1"),
        ] {
            let line = LINE.replace(right, wrong);
            assert_ne!(line, LINE);
            assert_eq!(LoggedRequest::parse_line(&line), None, "{line}");
        }
    }

    /// A line as a mount writes one, of a name of any bytes.
    fn line(name: &[u8], with: &str, outcome: &str) -> String {
        let name = name.escape_ascii();
        format!("17.000001 [uid:1,gid:2,pid:3] rename (4,\"{name}\"{with}): {outcome} <0.000009>")
    }

    proptest! {
        #[test]
        fn any_name_comes_through(name: Vec<u8>, second: Vec<u8>) {
            let with = format!(",5,\"{}\",0x0", second.escape_ascii());
            for outcome in ["ok", "ok 17", "Input/output error (os error 5)"] {
                let line = line(&name, &with, outcome);
                let request = LoggedRequest::parse_line(&line).unwrap();
                prop_assert_eq!(request.requested_file(), format!("4,\"{}\"", name.escape_ascii()));
                prop_assert_eq!(request.arguments, format!("{}{with}", request.requested_file()));
                prop_assert_eq!(request.outcome, outcome);
            }
        }

        #[test]
        fn no_line_that_was_cut_is_read(name: Vec<u8>, end: prop::sample::Index) {
            let whole = line(&name, "", "ok");
            // A name that holds what a line ends with is the worst case.
            let worst = line(&[b"\"): ok <0.1>".as_slice(), &name].concat(), "", "ok 1");
            for line in [whole, worst] {
                prop_assert_eq!(LoggedRequest::parse_line(&line[..end.index(line.len())]), None);
            }
        }

        #[test]
        fn any_text_is_taken(text: String) {
            let _ = LoggedRequest::parse_line(&text).map(|request| request.requested_file().len());
        }
    }
}
