//! The command that this process runs, as records of operations have it.
//!
//! Invariant: no secret, and no path of one, is among them.

use std::cell::RefCell;
use std::sync::OnceLock;

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use super::record::{WORD_MAX, WORDS_MAX};

/// Length of what tells one run of a command from all others, bytes.
const COMMAND_ID_LEN: usize = 8;

/// Tells one run of a command from all others: whatever it does has this in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub [u8; COMMAND_ID_LEN]);

impl CommandId {
    /// A new one; None if the system has no randomness, which costs no more than that the operations of the command are
    /// undone one by one.
    #[must_use]
    pub fn new_random() -> Option<Self> {
        let mut id = [0; COMMAND_ID_LEN];
        getrandom::fill(&mut id).ok().map(|()| Self(id))
    }
}

/// A command, as its operations record it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedCommand {
    /// Its words, without secrets.
    pub words: Vec<String>,
    /// Its run; None if what it does does not belong together, as of a process that serves others.
    pub id: Option<CommandId>,
}

impl RecordedCommand {
    /// A command of these words, of which nothing else is known.
    #[must_use]
    pub fn from_words(words: &[&str]) -> Self {
        Self { words: words.iter().copied().map(str::to_owned).collect(), id: None }
    }

    /// Adds the stored form.
    pub fn encode(&self, writer: &mut FieldWriter) {
        writer.write_varint(self.words.len() as u64);
        for word in &self.words {
            writer.write_bytes(word.as_bytes());
        }
        writer.write_u8(u8::from(self.id.is_some()));
        if let Some(CommandId(id)) = &self.id {
            writer.write_raw(id);
        }
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let words = (0..reader.read_count(WORDS_MAX)?)
            .map(|_| reader.read_string(WORD_MAX).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        let id = match reader.read_u8()? {
            0 => None,
            1 => Some(CommandId(reader.read_array()?)),
            _ => return Err(DecodeError::Invalid("command")),
        };
        Ok(Self { words, id })
    }
}

/// The command line.
static COMMAND: OnceLock<RecordedCommand> = OnceLock::new();

thread_local! {
    static SCOPED: RefCell<Option<RecordedCommand>> = const { RefCell::new(None) };
}

/// What stands in the place of a value that is not recorded.
const HIDDEN: &str = "***";

/// Options whose values are secrets, or lead to them, contain one of these.
const SECRET_OPTIONS: [&str; 8] =
    ["key", "pass", "secret", "token", "credential", "recovery", "auth", "command"];

/// Says which command this process runs; the name of the program is left out. The first call counts.
pub fn set_process_command(words: impl IntoIterator<Item = String>, id: Option<CommandId>) {
    let _ = COMMAND.set(RecordedCommand { words: remove_secrets(words), id });
}

/// The command that this thread works for; without words if its process runs none.
#[must_use]
pub fn current_command() -> RecordedCommand {
    scoped_command().or_else(|| COMMAND.get().cloned()).unwrap_or_default()
}

/// The command that this thread works for in the place of its process's own; None if there is none.
#[must_use]
pub fn scoped_command() -> Option<RecordedCommand> {
    SCOPED.with_borrow(Clone::clone)
}

/// While it lives, this thread works for another command than the one that its process was started with: that which serves
/// a mount does what it is asked to.
pub struct CommandScope {
    before: Option<RecordedCommand>,
}

impl CommandScope {
    /// Begins to work for a command.
    #[must_use]
    pub fn enter<'w>(words: impl IntoIterator<Item = &'w str>) -> Self {
        let words = words.into_iter().map(str::to_owned).collect();
        Self::enter_run(RecordedCommand { words, id: None })
    }

    /// Begins to work for one run of a command.
    #[must_use]
    pub fn enter_run(command: RecordedCommand) -> Self {
        let command = RecordedCommand { words: remove_secrets(command.words), ..command };
        Self { before: SCOPED.with_borrow_mut(|scoped| scoped.replace(command)) }
    }
}

impl Drop for CommandScope {
    fn drop(&mut self) {
        // Scopes may be nested: the one around this holds again.
        SCOPED.with_borrow_mut(|scoped| *scoped = self.before.take());
    }
}

/// The words without secrets, and no more and no longer ones than a record has.
fn remove_secrets(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut is_value_secret = false;
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        // The command line of another program may have secrets in any place.
        if word == "--" {
            kept.push(word);
            kept.extend(words.next().map(|program| shorten_word(remove_credentials(&program))));
            // One mark for all arguments, however many there are.
            kept.extend(words.next().map(|_| HIDDEN.to_owned()));
            break;
        }
        let word = match (is_value_secret, word.split_once('=')) {
            // What follows such an option is its value, unless it is an option itself.
            (true, _) if !word.starts_with('-') => HIDDEN.into(),
            (_, Some((option, _))) if is_secret_option(option) => format!("{option}={HIDDEN}"),
            _ => remove_credentials(&word),
        };
        is_value_secret = is_secret_option(&word);
        kept.push(shorten_word(word));
    }
    if kept.len() > WORDS_MAX {
        kept.truncate(WORDS_MAX - 1);
        kept.push("...".into());
    }
    kept
}

fn is_secret_option(word: &str) -> bool {
    let Some(name) = word.strip_prefix("--") else { return false };
    let name = name.to_ascii_lowercase();
    // Options may be shortened to what tells them apart.
    let is_secret_part = |part: &&str| name.contains(*part) || part.starts_with(&name);
    !name.is_empty() && !name.contains('=') && SECRET_OPTIONS.iter().any(is_secret_part)
}

/// An address without user, password and parameters.
fn remove_credentials(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.into() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    // The last one: a password may have one, too.
    let host = match host.rsplit_once('@') {
        Some((_, host)) => format!("{HIDDEN}@{host}"),
        None => host.into(),
    };
    let path = match path.find(['?', '#']) {
        Some(at) => format!("{}?{HIDDEN}", path.get(..at).unwrap_or_default()),
        None => path.into(),
    };
    format!("{scheme}://{host}{path}")
}

fn shorten_word(mut word: String) -> String {
    if word.len() > WORD_MAX {
        word.truncate(word.floor_char_boundary(WORD_MAX - 3));
        word.push_str("...");
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(words: &[&str]) -> Vec<String> {
        remove_secrets(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn secrets_and_paths_of_them_are_not_recorded() {
        assert_eq!(kept(&["key", "add", "--key-file", "/k", "x"]), ["key", "add", "--key-file", "***", "x"]);
        assert_eq!(
            kept(&["key", "add", "--pas", "/k", "--ke=/k"]),
            ["key", "add", "--pas", "***", "--ke=***"]
        );
        assert_eq!(kept(&["init", "--key-file=/k"]), ["init", "--key-file=***"]);
        assert_eq!(kept(&["--passphrase-stdin", "--plain"]), ["--passphrase-stdin", "--plain"]);
        assert_eq!(
            kept(&["push", "s3://key:p@ss@host/bucket?token=abc"]),
            ["push", "s3://***@host/bucket?***"]
        );
        assert_eq!(kept(&["snapshot", "-m", "a note"]), ["snapshot", "-m", "a note"]);
        assert_eq!(kept(&["try", "--", "curl", "-u", "a:b"]), ["try", "--", "curl", "***"]);
        assert_eq!(kept(&["ls", "--", "-a"]), ["ls", "--", "-a"]);
    }

    #[test]
    fn very_many_and_very_long_words_are_cut() {
        let many = kept(&vec!["é"; 10_000]);
        assert_eq!((many.len(), many.last().map(String::as_str)), (WORDS_MAX, Some("...")));
        let long = kept(&[&"é".repeat(WORD_MAX)]);
        assert!(long[0].len() <= WORD_MAX && long[0].ends_with("..."));
    }

    #[test]
    fn a_scope_ends_with_its_value() {
        let outer = CommandScope::enter(["snapshot"]);
        drop(CommandScope::enter(["restore", "x"]));
        assert_eq!(current_command().words, ["snapshot"]);
        drop(outer);
        assert!(SCOPED.with_borrow(Option::is_none));
    }
}
