//! Rules as typed: filters, lists and limits, in the order of the command line.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, value_parser};
use vellum_host::beneath::{BeneathError, open_trusted_file};
use vellum_host::escape::format_path;
use vellum_sync::rules::{FileLimits, ListedPaths, RuleArg, RuleError, RuleSet, SyncFilters};

use crate::context::CommandContext;
use crate::error::{CliError, Result};

/// What was typed.
#[derive(Debug, Default)]
pub struct RuleArgs {
    /// In the order in which it was typed.
    args: Vec<RuleArg>,
    cvs_exclude: bool,
    files_from: Option<OsString>,
    from0: bool,
    gitignore: bool,
    vellumignore: bool,
    min_size: Option<u64>,
    max_size: Option<u64>,
    newer_than: Option<String>,
}

type MakeRule = fn(Vec<u8>) -> RuleArg;

const ORDERED: [(&str, Option<char>, &str, &str, MakeRule); 5] = [
    ("exclude", None, "PATTERN", "Leave out paths that match (rsync's patterns)", RuleArg::Exclude),
    (
        "include",
        None,
        "PATTERN",
        "Include paths that match, even if a later rule leaves them out",
        RuleArg::Include,
    ),
    ("filter", Some('f'), "RULE", "Add a filter rule in rsync's syntax", RuleArg::Filter),
    (
        "exclude-from",
        None,
        "FILE",
        "Read patterns to leave out from FILE, one per line",
        RuleArg::ExcludeFrom,
    ),
    ("include-from", None, "FILE", "Read patterns to include from FILE, one per line", RuleArg::IncludeFrom),
];

impl clap::Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        let heading = "Which paths take part";
        let mut command = command;
        for (name, short, value, help, _) in ORDERED {
            let mut arg = Arg::new(name).long(name).value_name(value).help(help).help_heading(heading);
            // A rule may begin with a hyphen, as '- *.o' does.
            arg =
                arg.action(ArgAction::Append).value_parser(value_parser!(OsString)).allow_hyphen_values(true);
            command = command.arg(match short {
                Some(short) => arg.short(short),
                None => arg,
            });
        }
        let value = |name: &'static str, value: &'static str, help: &'static str| {
            let arg = Arg::new(name).long(name).value_name(value).help(help).help_heading(heading);
            arg.action(ArgAction::Set)
        };
        let flag = |name: &'static str, help: &'static str| {
            Arg::new(name).long(name).help(help).help_heading(heading).action(ArgAction::SetTrue)
        };
        command
            .arg(
                value("files-from", "FILE", "Copy only the paths that FILE lists ('-': standard input)")
                    .value_parser(value_parser!(OsString)),
            )
            .arg(flag("from0", "Lines in lists and rule files end with NUL").short('0'))
            .arg(
                Arg::new("per-dir-filters")
                    .short('F')
                    .help("Use the rules in .rsync-filter files; -FF also leaves out these files")
                    .help_heading(heading)
                    .action(ArgAction::Count),
            )
            .arg(
                flag("cvs-exclude", "Leave out what CVS ignores: *.o, *~, core, .git/ and the like")
                    .short('C'),
            )
            .arg(flag("gitignore", "Leave out what .gitignore files match"))
            .arg(flag("vellumignore", "Leave out what .vellumignore files match"))
            .arg(
                value("min-size", "SIZE", "Write no file that is smaller (10K, 1.5M)")
                    .value_parser(parse_rule_size),
            )
            .arg(value("max-size", "SIZE", "Write no file that is larger").value_parser(parse_rule_size))
            .arg(value("newer-than", "TIME", "Write no file last changed before TIME or FILE's time"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn parse_rule_size(text: &str) -> Result<u64, String> {
    crate::ui::format::parse_size(text)
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut typed = Vec::new();
        // clap keeps values by option: their places on the command line give the order that rules need, as the first
        // match counts.
        for (name, _, _, _, make) in ORDERED {
            let places = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            typed.extend(places.zip(values).map(|(place, value)| (place, make(value.clone().into_vec()))));
        }
        // A flag that is counted has a default value with a place of its own: the count tells whether it was typed.
        if let Some(place) = matches.indices_of("per-dir-filters").into_iter().flatten().next()
            && matches.get_count("per-dir-filters") > 0
        {
            typed.push((place, RuleArg::Filter(b": /.rsync-filter".to_vec())));
            // As with rsync: '-FF' leaves the rule files themselves out.
            if matches.get_count("per-dir-filters") > 1 {
                typed.push((place, RuleArg::Filter(b"- .rsync-filter".to_vec())));
            }
        }
        // The sort is stable: the two rules of '-FF' have one place, and keep their order.
        typed.sort_by_key(|(place, _)| *place);
        Ok(Self {
            args: typed.into_iter().map(|(_, arg)| arg).collect(),
            cvs_exclude: matches.get_flag("cvs-exclude"),
            files_from: matches.get_one("files-from").cloned(),
            from0: matches.get_flag("from0"),
            gitignore: matches.get_flag("gitignore"),
            vellumignore: matches.get_flag("vellumignore"),
            min_size: matches.get_one("min-size").copied(),
            max_size: matches.get_one("max-size").copied(),
            newer_than: matches.get_one("newer-than").cloned(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl RuleArgs {
    /// All rules in their order; what CVS leaves out comes last, unless its place was typed.
    fn ordered_rules(&self) -> Vec<RuleArg> {
        let cvs = |arg: &RuleArg| matches!(arg, RuleArg::Filter(text) if text.trim_ascii() == b"-C");
        let mut all = Vec::new();
        for arg in &self.args {
            all.push(arg.clone());
            if cvs(arg) {
                all.extend(user_cvs_rules());
            }
        }
        if self.cvs_exclude {
            // As with rsync, ':C' reads the .cvsignore of each directory, and '-C' adds the patterns that CVS has
            // built in.
            all.extend([b":C".to_vec(), b"-C".to_vec()].map(RuleArg::Filter));
            all.extend(user_cvs_rules());
        }
        all
    }

    /// Whether paths are listed in a file.
    pub fn has_path_lists(&self) -> bool {
        self.files_from.is_some()
    }

    /// What they mean; files that they name are read.
    pub fn load_filters(
        &self,
        context: &CommandContext,
        recursive: bool,
        delete_excluded: bool,
    ) -> Result<SyncFilters> {
        let mut read = |name: &[u8]| -> Result<Vec<u8>, String> {
            let path = context.resolve_local_path(Path::new(std::ffi::OsStr::from_bytes(name)));
            read_rule_file(&path, name).map_err(|error| error.to_string())
        };
        let mut rules =
            RuleSet::compile_args(&self.ordered_rules(), self.from0, &mut read).map_err(rule_usage_error)?;
        rules.delete_excluded = delete_excluded;
        rules.gitignore = self.gitignore;
        rules.vellumignore = self.vellumignore;
        let selection = match &self.files_from {
            None => None,
            Some(file) => {
                let path = context.resolve_local_path(Path::new(file));
                refuse_remote_list(file, &path)?;
                let shown = path.display().to_string();
                let text =
                    read_rule_file(&path, file.as_bytes()).map_err(CliError::io_error("read", shown))?;
                // In a list, rsync would cut the path at the mark, and the entries of one list would go to several
                // places.
                if let Some(line) = ListedPaths::find_marked_line(&text, self.from0) {
                    let message = format!("'/./' has no meaning in a list: '{}'", format_path(line));
                    return Err(CliError::usage_error(
                        message,
                        "list paths from SRC on, and let SRC be where they begin",
                    ));
                }
                Some(ListedPaths::parse(&text, self.from0, recursive).map_err(rule_usage_error)?)
            }
        };
        let newer_than = self.newer_than.as_ref().map(|typed| parse_time(context, typed)).transpose()?;
        let limits = FileLimits { min_size: self.min_size, max_size: self.max_size, newer_than };
        Ok(SyncFilters { rules, selection, limits })
    }
}

/// What a user has CVS leave out besides, in rsync's places for it.
fn user_cvs_rules() -> Vec<RuleArg> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cvsignore"));
    // Most users have no such file.
    let file = home.and_then(|path| std::fs::read(path).ok());
    let variable = std::env::var_os("CVSIGNORE").map(OsString::into_vec);
    file.into_iter().chain(variable).map(RuleArg::Cvs).collect()
}

/// Refuses a list on another host.
fn refuse_remote_list(typed: &OsString, path: &Path) -> Result<()> {
    let bytes = typed.as_bytes();
    // As in SRC, a colon before any slash follows the name of a host.
    let colon = bytes.iter().position(|byte| *byte == b':');
    let is_host = colon.is_some_and(|colon| !bytes.get(..colon).unwrap_or_default().contains(&b'/'));
    if !is_host || path.exists() {
        return Ok(());
    }
    let message = format!(
        "the list '{}' is on another host, and --files-from reads it on this one",
        format_path(bytes)
    );
    Err(CliError::usage_error(message, "ssh HOST cat FILE | vellum sync --files-from=- SRC DST"))
}

fn rule_usage_error(error: RuleError) -> CliError {
    CliError::usage_error(error.to_string(), "docs/sync.md describes the rules")
}

fn read_rule_file(path: &Path, typed: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    if typed == b"-" {
        std::io::stdin().lock().read_to_end(&mut text)?;
    } else {
        // These rules decide what is deleted. In a directory like /tmp, a symlink of another user must not choose
        // them.
        open_trusted_file(path).map_err(BeneathError::into_io_error)?.read_to_end(&mut text)?;
    }
    Ok(text)
}

/// A time as typed: of a file, a date, or so long ago.
fn parse_time(context: &CommandContext, typed: &str) -> Result<i64> {
    use std::os::unix::fs::MetadataExt;
    // A word like '2026-05-01' means the file of this name, if there is one.
    if let Ok(found) = std::fs::metadata(context.resolve_local_path(Path::new(typed))) {
        return Ok(found.mtime());
    }
    let zone = jiff::tz::TimeZone::system();
    let date = typed.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second).or_else(|| {
        // Without a zone, a date is one of the zone of this machine.
        let date = typed.parse::<jiff::civil::DateTime>().ok();
        let date = date.or_else(|| Some(typed.parse::<jiff::civil::Date>().ok()?.at(0, 0, 0, 0)));
        Some(date?.to_zoned(zone.clone()).ok()?.timestamp().as_second())
    });
    let ago = || {
        let span = typed.trim_end_matches(" ago").parse::<jiff::Span>().ok()?;
        let now = jiff::Zoned::now();
        // With either sign, because only the past can be meant.
        now.checked_sub(span.abs()).ok().map(|then| then.timestamp().as_second())
    };
    date.or_else(ago).ok_or_else(|| {
        let message = format!("'{typed}' is neither a file nor a time");
        CliError::usage_error(message, "'2026-05-01', '2026-05-01 13:30', '2 days ago', or a file")
    })
}
