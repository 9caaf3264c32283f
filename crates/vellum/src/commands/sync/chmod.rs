//! `--chmod`, `--chown`, `--usermap` and `--groupmap` as typed.

use vellum_sync::model::options::{ModeChange, ModeOperation, ModeSubjects, OwnerPattern, OwnerRule};

use crate::error::{CliError, Result};

const USER: u32 = 0o4700;
const GROUP: u32 = 0o2070;
const OTHERS: u32 = 0o1007;

/// Changes of modes: clauses with commas between them, each perhaps with a `D` or an `F` in front.
/// Where no class is named in one, `umask` decides which bits are not meant.
pub fn parse_mode_changes(typed: &str, umask: u32) -> Result<Vec<ModeChange>> {
    typed
        .split(',')
        .map(|clause| parse_mode_clause(clause, umask).ok_or_else(|| invalid_mode_error(typed)))
        .collect()
}

fn invalid_mode_error(typed: &str) -> CliError {
    let message = format!("'{typed}' is not a valid change of modes");
    CliError::usage_error(message, "for example 'D755,F644', 'go-w', 'Dg+s,u=rwX'")
}

fn parse_mode_clause(clause: &str, umask: u32) -> Option<ModeChange> {
    let (of, rest) = match clause.as_bytes().first()? {
        b'D' => (ModeSubjects::Dirs, clause.get(1..)?),
        b'F' => (ModeSubjects::Files, clause.get(1..)?),
        _ => (ModeSubjects::All, clause),
    };
    // As with chmod, an octal number replaces all bits.
    if rest.bytes().all(|byte| byte.is_ascii_digit()) {
        let bits = u32::from_str_radix(rest, 8).ok().filter(|bits| *bits <= 0o7777)?;
        let whom = 0o7777;
        let operation = ModeOperation::Set;
        return Some(ModeChange { of, whom, operation, bits, execute_if_any: false, masked: 0, copies: 0 });
    }
    let end = rest.find(['+', '-', '='])?;
    let (who, action) = rest.split_at(end);
    let mut whom = 0;
    for letter in who.chars() {
        whom |= match letter {
            'u' => USER,
            'g' => GROUP,
            'o' => OTHERS,
            'a' => 0o7777,
            _ => return None,
        };
    }
    // As with chmod: a change without a class means all classes, except for the bits of the umask.
    let masked = if who.is_empty() { umask } else { 0 };
    if who.is_empty() {
        whom = 0o7777;
    }
    let mut letters = action.chars();
    let operation = match letters.next()? {
        '+' => ModeOperation::Add,
        '-' => ModeOperation::Remove,
        _ => ModeOperation::Set,
    };
    // A class as the only letter copies the bits that it has, as in 'g=u'.
    let copies = match letters.as_str() {
        "u" => 0o700,
        "g" => 0o070,
        "o" => 0o007,
        _ => 0,
    };
    let mut bits = 0;
    let mut execute_if_any = false;
    for letter in letters.filter(|_| copies == 0) {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            // The class decides which of the two set-id bits is meant.
            's' => bits |= 0o6000,
            't' => bits |= 0o1000,
            'X' => execute_if_any = true,
            _ => return None,
        }
    }
    Some(ModeChange { of, whom, operation, bits, execute_if_any, masked, copies })
}

/// `USER`, `USER:GROUP`, `:GROUP`, by name or by number.
pub fn parse_owner_and_group(typed: &str) -> Result<(Option<u32>, Option<u32>)> {
    let (user, group) = typed.split_once(':').unwrap_or((typed, ""));
    let find = |name: &str, file: &str, noun: &str| match name {
        "" => Ok(None),
        // Looked up here, and not by the side that writes: the name is one of the host on which it was typed.
        name => lookup_account_id(name, file).map(Some).ok_or_else(|| {
            CliError::usage_error(format!("there is no {noun} '{name}'"), "a number works without a name")
        }),
    };
    Ok((find(user, "/etc/passwd", "user")?, find(group, "/etc/group", "group")?))
}

/// Whom owners become: `FROM:TO` with commas between, FROM a name, a pattern of names, a number, `FIRST-LAST`, or nothing
/// for numbers without a name.
pub fn parse_owner_rules(typed: &str) -> Result<Vec<OwnerRule>> {
    let wrong = || {
        let message = format!("'{typed}' is not a valid map of owners");
        CliError::usage_error(message, "for example 'ann:bob,1000-1999:nobody,*:root'")
    };
    let rule = |text: &str| {
        let (from, to) = text.split_once(':').filter(|(_, to)| !to.is_empty())?;
        let range = from.split_once('-').unwrap_or((from, from));
        // A name may have a hyphen in it: only two numbers are a range.
        let from = match (range.0.parse(), range.1.parse()) {
            _ if from.is_empty() => OwnerPattern::Nameless,
            (Ok(first), Ok(last)) => OwnerPattern::Numbers(first, last),
            _ => OwnerPattern::Name(from.to_owned()),
        };
        Some(OwnerRule { from, to: to.to_owned() })
    };
    typed.split(',').map(|text| rule(text).ok_or_else(wrong)).collect()
}

/// The number of a name in the system's table.
fn lookup_account_id(name: &str, file: &str) -> Option<u32> {
    // As with rsync, digits are a number, even if an account has them as its name.
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let table = std::fs::read_to_string(file).ok()?;
    let line = table.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(typed: &str, mode: u32, is_dir: bool) -> u32 {
        let changes = parse_mode_changes(typed, 0o022).unwrap_or_default();
        assert!(!changes.is_empty());
        changes.iter().fold(mode, |mode, change| change.apply_to_mode(mode, is_dir))
    }

    #[test]
    fn clauses_mean_what_they_mean_to_chmod() {
        assert_eq!(applied("D755,F644", 0o700, true), 0o755);
        assert_eq!(applied("D755,F644", 0o700, false), 0o644);
        assert_eq!(applied("go-w", 0o777, false), 0o755);
        assert_eq!(applied("Dg+s", 0o755, true), 0o2755);
        assert_eq!(applied("Dg+s", 0o755, false), 0o755);
        assert_eq!(applied("u=rwX,go=", 0o644, false), 0o600);
        assert_eq!(applied("u=rwX", 0o600, true), 0o700);
        assert_eq!(applied("a-s", 0o4755, false), 0o755);
        assert_eq!(applied("+X", 0o744, false), 0o755);
        for wrong in ["", "q+r", "u+q", "99", "D", "u", "u=gr", "u=go", "g=a"] {
            assert!(parse_mode_changes(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn owners_are_mapped_by_name_and_number() {
        let rules = parse_owner_rules("ann:bob,5:6,10-20:7,:8,a*:9").unwrap_or_default();
        let from: Vec<_> = rules.iter().map(|rule| rule.from.clone()).collect();
        let name = |name: &str| OwnerPattern::Name(name.to_owned());
        use OwnerPattern::{Nameless, Numbers};
        assert_eq!(from, [name("ann"), Numbers(5, 5), Numbers(10, 20), Nameless, name("a*")]);
        for wrong in ["", "a", "a:", "a:b,"] {
            assert!(parse_owner_rules(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_names_nobody_means_what_the_umask_leaves() {
        assert_eq!(applied("+w", 0o444, false), 0o644);
        assert_eq!(applied("D+w", 0o555, true), 0o755);
        assert_eq!(applied("=rwx", 0o000, false), 0o755);
        assert_eq!(applied("=r", 0o777, false), 0o444);
        assert_eq!(applied("-w", 0o666, false), 0o466);
        assert_eq!(applied("a+w", 0o444, false), 0o666);
        assert_eq!(applied("+X", 0o100, false), 0o111);
    }

    #[test]
    fn permissions_are_taken_from_others() {
        assert_eq!(applied("u=g", 0o640, false), 0o440);
        assert_eq!(applied("o=u", 0o640, false), 0o646);
        assert_eq!(applied("g+u", 0o640, false), 0o660);
        assert_eq!(applied("go=u,o-w", 0o700, true), 0o775);
    }

    #[test]
    fn owners_have_names_or_numbers() {
        assert_eq!(parse_owner_and_group("0:0").ok(), Some((Some(0), Some(0))));
        assert_eq!(parse_owner_and_group("root").ok(), Some((Some(0), None)));
        assert_eq!(parse_owner_and_group(":12").ok(), Some((None, Some(12))));
        assert!(parse_owner_and_group("nobody-of-this-name").is_err());
    }
}
