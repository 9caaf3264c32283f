//! Every option of rsync's that is not an option of ours: what it is called here, or that there is none.
//!
//! Invariant: no option that rsync's help names is an unknown one here; docs/sync.md shows the same table. What both have
//! under one name and with one meaning stands in `args` and `rules`.

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use crate::error::{CliError, Result};

/// What is said of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RsyncOptionSupport {
    /// It is accepted, and there is nothing to do: what it requests is always the case.
    Anyway(&'static str),
    /// What does it here.
    Ours(&'static str),
    /// There is none, and why.
    None(&'static str),
}

// Renamed, because `None` alone is that of `Option`.
use RsyncOptionSupport::{Anyway, None as No, Ours};

/// An option: its name without dashes, its letter, whether a value goes with it.
#[derive(Debug, Clone, Copy)]
pub struct RsyncOption {
    pub name: &'static str,
    letter: Option<char>,
    takes: bool,
    pub meaning: RsyncOptionSupport,
}

const fn new_flag_option(name: &'static str, meaning: RsyncOptionSupport) -> RsyncOption {
    RsyncOption { name, letter: None, takes: false, meaning }
}

const fn new_value_option(name: &'static str, meaning: RsyncOptionSupport) -> RsyncOption {
    RsyncOption { name, letter: None, takes: true, meaning }
}

const fn with_short_letter(letter: char, row: RsyncOption) -> RsyncOption {
    RsyncOption { letter: Some(letter), ..row }
}

const DAEMON: RsyncOptionSupport = No("rsync daemons are not supported: hosts are reached over ssh");
const BATCH: RsyncOptionSupport = No("'vellum snapshot' keeps a state, and a snapshot can be a source");
const ORDER: RsyncOptionSupport = Anyway("both sides are listed at once");
const STDERR: RsyncOptionSupport = No("results go to standard output, problems to standard error");
const COMPARED: RsyncOptionSupport = No("content is hashed with BLAKE3");

/// All of them, as rsync's help orders them, and those that older versions had.
pub const TABLE: &[RsyncOption] = &[
    new_value_option("debug", Ours("-v")),
    new_value_option("stderr", STDERR),
    new_flag_option("msgs2stderr", STDERR),
    new_flag_option("no-msgs2stderr", STDERR),
    new_flag_option("no-motd", DAEMON),
    new_flag_option("inc-recursive", ORDER),
    new_flag_option("i-r", ORDER),
    new_flag_option("no-inc-recursive", ORDER),
    new_flag_option("no-i-r", ORDER),
    new_flag_option("old-dirs", Ours("--dirs")),
    new_flag_option("old-d", Ours("--dirs")),
    new_flag_option("insecure-links", No("name what another user's symlink leads to instead")),
    new_value_option("confine-root", Anyway("nothing outside of the destination is written to")),
    new_flag_option("munge-links", Ours("--safe-links")),
    new_flag_option("copy-devices", No("devices are never opened")),
    new_flag_option("write-devices", No("devices are never opened")),
    new_flag_option("drop-D", Ours("--no-D")),
    new_flag_option("open-noatime", Anyway("reading leaves the times of one's own files alone")),
    with_short_letter('N', new_flag_option("crtimes", No("Linux cannot set them"))),
    new_flag_option("super", Anyway("root sets owners and makes devices, others cannot")),
    new_flag_option("preallocate", No("blocks are taken as they are written; holes stay holes")),
    new_value_option("checksum-choice", COMPARED),
    new_value_option("cc", COMPARED),
    with_short_letter(
        'B',
        new_value_option("block-size", No("the length of blocks follows from that of the file")),
    ),
    new_flag_option("remove-sent-files", Ours("--remove-source-files")),
    new_flag_option("ignore-errors", No("nothing is deleted while part of the source cannot be read")),
    new_value_option("max-alloc", Anyway("what comes from the other side is bounded")),
    new_value_option("contimeout", DAEMON),
    with_short_letter('y', new_flag_option("fuzzy", Ours("--detect-renames"))),
    new_value_option("compress-choice", Ours("--compress=zstd, --compress=none")),
    new_value_option("zc", Ours("--compress=zstd, --compress=none")),
    new_flag_option("old-compress", Ours("--compress")),
    new_flag_option("new-compress", Ours("--compress")),
    new_value_option("compress-level", No("one level is right for all lines: --compress=none turns it off")),
    new_value_option("zl", No("one level is right for all lines: --compress=none turns it off")),
    new_value_option("compress-threads", No("each direction is one stream")),
    new_value_option("zt", No("each direction is one stream")),
    new_value_option("skip-compress", Ours("--compress=none")),
    new_flag_option("old-args", Anyway("no shell sees a path")),
    new_flag_option("no-old-args", Anyway("no shell sees a path")),
    with_short_letter('s', new_flag_option("secluded-args", Anyway("no shell sees a path"))),
    new_flag_option("protect-args", Anyway("no shell sees a path")),
    new_flag_option("no-secluded-args", Anyway("no shell sees a path")),
    new_flag_option("no-protect-args", Anyway("no shell sees a path")),
    new_flag_option("no-s", Anyway("no shell sees a path")),
    new_flag_option("trust-sender", No("neither side ever trusts the other")),
    new_value_option("copy-as", Ours("sudo -u USER vellum sync")),
    new_value_option("address", Ours("-e 'ssh -b ADDRESS'")),
    new_value_option("port", Ours("-e 'ssh -p PORT'")),
    new_value_option("sockopts", DAEMON),
    new_flag_option("blocking-io", Anyway("it makes no difference to ssh")),
    new_flag_option("no-blocking-io", Anyway("it makes no difference to ssh")),
    new_value_option("outbuf", Anyway("lines come when they are complete")),
    with_short_letter(
        '8',
        new_flag_option(
            "8-bit-output",
            No("what a terminal could obey is shown escaped; --json has all bytes"),
        ),
    ),
    new_value_option("password-file", DAEMON),
    new_value_option("early-input", DAEMON),
    new_value_option("stop-after", Ours("timeout -s INT 10m vellum sync: the next run goes on")),
    new_value_option("time-limit", Ours("timeout -s INT 10m vellum sync: the next run goes on")),
    new_value_option("stop-at", Ours("timeout -s INT 10m vellum sync: the next run goes on")),
    new_value_option("write-batch", BATCH),
    new_value_option("only-write-batch", BATCH),
    new_value_option("read-batch", BATCH),
    new_value_option("protocol", Anyway("both sides agree on a version")),
    new_value_option("checksum-seed", COMPARED),
    with_short_letter('4', new_flag_option("ipv4", Ours("-e 'ssh -4'"))),
    with_short_letter('6', new_flag_option("ipv6", Ours("-e 'ssh -6'"))),
    with_short_letter('V', new_flag_option("version", Ours("vellum --version"))),
    new_flag_option("daemon", DAEMON),
    new_value_option("config", DAEMON),
];

/// Options that are turned off again by `--no-NAME`, and how else rsync calls that; those of `-a` stand in `args`.
const TURNED_OFF: [(&str, &str, Option<&str>); 33] = [
    ("dirs", "no-dirs", Some("no-d")),
    ("acls", "no-acls", Some("no-A")),
    ("xattrs", "no-xattrs", Some("no-X")),
    ("atimes", "no-atimes", Some("no-U")),
    ("hard_links", "no-hard-links", Some("no-H")),
    ("sparse", "no-sparse", Some("no-S")),
    ("omit_dir_times", "no-omit-dir-times", Some("no-O")),
    ("omit_link_times", "no-omit-link-times", Some("no-J")),
    ("executability", "no-executability", Some("no-E")),
    ("one_file_system", "no-one-file-system", Some("no-x")),
    ("numeric_ids", "no-numeric-ids", Some("no-numeric-id")),
    ("relative", "no-relative", Some("no-R")),
    ("no_implied_dirs", "implied-dirs", Some("i-d")),
    ("mkpath", "no-mkpath", Some("no-mkpaths")),
    ("iconv", "no-iconv", None),
    ("prune_empty_dirs", "no-prune-empty-dirs", Some("no-m")),
    ("update", "no-update", Some("no-u")),
    ("checksum", "no-checksum", Some("no-c")),
    ("ignore_times", "no-ignore-times", Some("no-I")),
    ("size_only", "no-size-only", None),
    ("force", "no-force", None),
    ("backup", "no-backup", Some("no-b")),
    ("in_place", "no-in-place", Some("no-inplace")),
    ("append", "no-append", None),
    ("resume", "no-resume", Some("no-partial")),
    ("delay_updates", "no-delay-updates", None),
    ("fsync", "no-fsync", None),
    ("compress", "no-compress", Some("no-z")),
    ("bwlimit", "no-bwlimit", None),
    ("timeout", "no-timeout", None),
    ("itemize", "no-itemize-changes", Some("no-i")),
    ("progress", "no-progress", None),
    ("human_readable", "no-human-readable", Some("no-h")),
];

/// What of the table was typed.
#[derive(Debug, Default)]
pub struct RsyncArgs {
    typed: Vec<RsyncOption>,
    /// Paths of a list shall lose the directories above them.
    pub flattens: bool,
}

impl RsyncArgs {
    /// Refuses options that do not exist here, with the reason or the replacement.
    pub fn refuse_unsupported(&self) -> Result<()> {
        let refused = self.typed.iter().find_map(|row| match row.meaning {
            Anyway(_) => None,
            Ours(ours) => Some((row.name, format!("here it is {ours}"))),
            No(why) => Some((row.name, format!("there is none here: {why}"))),
        });
        refused.map_or(Ok(()), |(name, hint)| {
            Err(CliError::usage_error(format!("--{name} is an option of rsync, and not of vellum"), hint))
        })
    }
}

impl clap::Args for RsyncArgs {
    fn augment_args(command: Command) -> Command {
        let mut command = command;
        // Each option is known to clap, so that a command line that was written for rsync gets an answer about its
        // option. They are hidden, because the help shows only what has an effect.
        for row in TABLE {
            // Scripts give an option several times, which is no error in rsync either.
            let action = if row.takes { ArgAction::Append } else { ArgAction::Count };
            let mut arg = Arg::new(row.name).long(row.name).hide(true).action(action);
            // rsync takes the next word as the value, whatever it begins with.
            if row.takes {
                arg = arg.allow_hyphen_values(true).value_parser(clap::value_parser!(std::ffi::OsString));
            }
            command = command.arg(match row.letter {
                Some(letter) => arg.short(letter),
                None => arg,
            });
        }
        for (option, name, also) in TURNED_OFF {
            // As with rsync, the last one of an option and its negation counts.
            let arg = Arg::new(name).long(name).aliases(also).hide(true);
            command = command.arg(arg.action(ArgAction::SetTrue).overrides_with(option));
        }
        // In rsync's lines -C is --cvs-exclude; the directory to work in is named before the command.
        let directory = Arg::new("directory").long("work-in").hide(true).value_name("DIR");
        command.arg(directory.value_parser(clap::value_parser!(std::path::PathBuf)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RsyncArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |row: &&RsyncOption| {
            // A flag that is counted has a default value: only what was typed is meant.
            let source = matches.value_source(row.name);
            source == Some(clap::parser::ValueSource::CommandLine)
        };
        let flattens = matches.get_flag("no-relative");
        Ok(Self { typed: TABLE.iter().filter(given).copied().collect(), flattens })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::process::Command;

    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;
    use crate::cli::CommandLine;

    /// The options that rsync's help names: dashes, name, and whether a value follows.
    fn of_rsync() -> Vec<(String, bool)> {
        let help = Command::new("rsync").arg("--help").output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        let lines = help.lines().filter(|line| line.starts_with('-'));
        let words = lines.flat_map(|line| line.split("  ").next().unwrap_or_default().split(", "));
        words
            .map(|word| {
                let word = word.split(' ').next().unwrap_or_default();
                let (name, value) = word.split_once('=').unwrap_or((word, ""));
                (name.to_owned(), !value.is_empty())
            })
            .filter(|(name, _)| name.starts_with('-') && name != "--no-OPTION")
            .collect()
    }

    fn parse(words: &[&str]) -> Result<CommandLine, clap::Error> {
        CommandLine::try_parse_from([&["vellum", "sync"], words, &["a", "b"]].concat())
    }

    #[test]
    fn every_option_of_rsync_is_known() {
        let all = of_rsync();
        assert!(all.len() > 150, "{all:?}");
        let mut unknown = Vec::new();
        for (name, takes) in all {
            let typed = if takes { format!("{name}=1") } else { name.clone() };
            let outcome = parse(&[&typed]).map(|_| ()).map_err(|error| error.kind());
            // A value may be wrong, and some are not for a run with two ends.
            if matches!(outcome, Err(ErrorKind::UnknownArgument | ErrorKind::TooManyValues)) {
                unknown.push(name);
            }
        }
        assert_eq!(unknown, [""; 0], "name them in TABLE, or make them options");
    }

    #[test]
    fn what_is_turned_on_can_be_turned_off() {
        for (option, name, also) in TURNED_OFF {
            for typed in std::iter::once(name).chain(also) {
                assert!(parse(&[&format!("--{typed}")]).is_ok(), "{option}: --{typed}");
            }
        }
        assert!(parse(&["-aHAXSvvhhiPP", "--no-H", "--no-D", "--no-o", "--no-g", "--no-W"]).is_ok());
    }

    #[test]
    fn the_document_has_the_whole_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sync.md");
        let text = std::fs::read_to_string(path).unwrap();
        let missing: Vec<_> =
            TABLE.iter().map(|row| row.name).filter(|name| !text.contains(&format!("`--{name}`"))).collect();
        assert_eq!(missing, [""; 0], "docs/sync.md, \"From rsync\"");
    }
}
