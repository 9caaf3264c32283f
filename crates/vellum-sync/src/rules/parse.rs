//! Parsing rules: rsync's syntax of filter rules, and that of its older patterns.
//!
//! Invariant: text that cannot be parsed is an error that quotes it; nothing is skipped silently. Deliberately absent:
//! reading files.

use super::error::RuleError;
use super::rule::{DirMergeRule, FilterRule, RuleEffect, RuleModifiers, RuleSides};

/// Longest pattern, bytes: `PATH_MAX`.
pub(super) const PATTERN_MAX: usize = 4096;

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedLine {
    Rule(FilterRule),
    /// Read this file once, at this position.
    Merge {
        name: Vec<u8>,
        modifiers: RuleModifiers,
        hidden: Option<FilterRule>,
    },
    DirMerge {
        merge: DirMergeRule,
        hidden: Option<FilterRule>,
    },
    /// The patterns of CVS.
    Cvs,
    Clear,
}

/// Parses the rules of a whole file.
pub(super) fn parse_rule_file(
    text: &[u8],
    from: &RuleModifiers,
    nul: bool,
) -> Result<Vec<ParsedLine>, RuleError> {
    // Editors on Windows write a byte order mark, which would become a part of the first pattern.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let ends = |byte: &u8| if nul { *byte == 0 } else { matches!(byte, b'\n' | b'\r') };
    let mut said = Vec::new();
    for line in text.split(ends) {
        if from.words {
            parse_word_rules(line, from, &mut said)?;
        } else if !matches!(line.first(), None | Some(b'#' | b';')) {
            said.push(parse_rule(line, from)?);
        }
    }
    Ok(said)
}

/// Parses the pattern of `--include` and `--exclude`, where the prefixes `- `, `+ ` and `!` still have their old
/// meaning.
pub(super) fn parse_old_pattern(text: &[u8], effect: RuleEffect) -> Result<ParsedLine, RuleError> {
    match text {
        b"!" => Ok(ParsedLine::Clear),
        [b'-', b' ', pattern @ ..] => {
            create_plain_rule(pattern, RuleEffect::Exclude, &RuleModifiers::default()).map(ParsedLine::Rule)
        }
        [b'+', b' ', pattern @ ..] => {
            create_plain_rule(pattern, RuleEffect::Include, &RuleModifiers::default()).map(ParsedLine::Rule)
        }
        pattern => create_plain_rule(pattern, effect, &RuleModifiers::default()).map(ParsedLine::Rule),
    }
}

/// The patterns that CVS excludes in every directory.
const CVS: &[u8] = b"RCS SCCS CVS CVS.adm RCSLOG cvslog.* tags TAGS .make.state .nse_depinfo *~ #* .#* ,* _$* *$ \
    *.old *.bak *.BAK *.orig *.rej .del-* *.a *.olb *.o *.obj *.so *.exe *.Z *.elc *.ln core .svn/ .git/ .hg/ .bzr/";

/// The exclude rules for the patterns of CVS, or for those of `text`.
pub(super) fn parse_cvs_patterns(text: Option<&[u8]>) -> Result<Vec<ParsedLine>, RuleError> {
    let from = RuleModifiers {
        plain: Some(RuleEffect::Exclude),
        words: true,
        cvs: true,
        perishable: true,
        ..RuleModifiers::default()
    };
    let mut said = Vec::new();
    let lines = text.unwrap_or(CVS).split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.into_iter().try_for_each(|line| parse_word_rules(line, &from, &mut said))?;
    Ok(said)
}

/// Parses one rule of the newer syntax.
pub(super) fn parse_rule(text: &[u8], from: &RuleModifiers) -> Result<ParsedLine, RuleError> {
    // A file merged with `-` or `+` contains patterns only, so prefixes have no meaning in it.
    if let Some(effect) = from.plain {
        return match text {
            b"!" if from.cvs => Ok(ParsedLine::Clear),
            pattern => create_plain_rule(pattern, effect, from).map(ParsedLine::Rule),
        };
    }
    if text
        .strip_prefix(b"-C")
        .or(text.strip_prefix(b"exclude,C"))
        .is_some_and(|rest| rest.trim_ascii().is_empty())
    {
        return Ok(ParsedLine::Cvs);
    }
    let head = RuleHead::parse(text, false)?;
    let pattern = text.get(head.len..).unwrap_or_default();
    head.complete_line(pattern, text, from)
}

/// Splits rules at white space: the single space after a prefix belongs to its rule.
fn parse_word_rules(line: &[u8], from: &RuleModifiers, said: &mut Vec<ParsedLine>) -> Result<(), RuleError> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let head = if from.plain.is_some() { None } else { Some(RuleHead::parse(rest, true)?) };
        let start = head.as_ref().map_or(0, |head| head.len);
        let body = rest.get(start..).unwrap_or_default();
        let len = body.iter().position(u8::is_ascii_whitespace).unwrap_or(body.len());
        let (pattern, after) = body.split_at(len);
        said.push(match head {
            Some(head) => head.complete_line(pattern, rest.get(..start + len).unwrap_or_default(), from)?,
            None => parse_rule(pattern, from)?,
        });
        rest = after.trim_ascii_start();
    }
    Ok(())
}

fn create_plain_rule(
    pattern: &[u8],
    effect: RuleEffect,
    from: &RuleModifiers,
) -> Result<FilterRule, RuleError> {
    if pattern.is_empty() || pattern.len() > PATTERN_MAX || pattern.contains(&0) {
        return Err(RuleError::syntax_error(pattern, "a pattern has 1 to 4096 bytes, and no NUL"));
    }
    Ok(FilterRule {
        effect,
        pattern: pattern.to_vec(),
        sides: from.sides,
        negated: false,
        perishable: from.perishable,
        absolute: from.absolute,
        xattr: from.xattr,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    Effect(RuleEffect),
    Merge,
    DirMerge,
    Clear,
}

/// The part of a rule before its pattern: the kind and the modifiers.
struct RuleHead {
    kind: RuleKind,
    /// The kind determines a side, so that modifiers may not.
    sided: Option<RuleSides>,
    modifiers: RuleModifiers,
    /// The sides that modifiers name.
    sender: bool,
    receiver: bool,
    negated: bool,
    hides_itself: bool,
    not_inherited: bool,
    /// The length of this part with its space.
    len: usize,
}

/// The long names of kinds.
const NAMES: [(&[u8], u8); 9] = [
    (b"exclude", b'-'),
    (b"include", b'+'),
    (b"merge", b'.'),
    (b"dir-merge", b':'),
    (b"hide", b'H'),
    (b"show", b'S'),
    (b"protect", b'P'),
    (b"risk", b'R'),
    (b"clear", b'!'),
];

impl RuleHead {
    fn parse(text: &[u8], words: bool) -> Result<Self, RuleError> {
        let (letter, mut at) = parse_prefix(text);
        let mut head =
            Self::from_letter(letter).ok_or_else(|| RuleError::syntax_error(text, "no such kind of rule"))?;
        // A comma separates modifiers from a long name, and may separate them from a letter.
        if text.get(at) == Some(&b',') {
            at += 1;
        }
        while head.kind != RuleKind::Clear {
            match text.get(at) {
                None => break,
                // One space or underscore ends the prefix; further ones are part of the pattern, as in rsync.
                Some(b' ' | b'_') => {
                    at += 1;
                    break;
                }
                Some(byte) if words && byte.is_ascii_whitespace() => break,
                Some(byte) => head.apply_modifier(*byte, text)?,
            }
            at += 1;
        }
        head.len = at;
        Ok(head)
    }

    fn from_letter(letter: u8) -> Option<Self> {
        let (kind, sided) = match letter {
            b'-' => (RuleKind::Effect(RuleEffect::Exclude), None),
            b'+' => (RuleKind::Effect(RuleEffect::Include), None),
            b'H' => (RuleKind::Effect(RuleEffect::Exclude), Some(RuleSides::SENDER)),
            b'S' => (RuleKind::Effect(RuleEffect::Include), Some(RuleSides::SENDER)),
            b'P' => (RuleKind::Effect(RuleEffect::Exclude), Some(RuleSides::RECEIVER)),
            b'R' => (RuleKind::Effect(RuleEffect::Include), Some(RuleSides::RECEIVER)),
            b'.' => (RuleKind::Merge, None),
            b':' => (RuleKind::DirMerge, None),
            b'!' => (RuleKind::Clear, None),
            _ => return None,
        };
        let modifiers = RuleModifiers::default();
        let sender = false;
        let receiver = false;
        let negated = false;
        let hides_itself = false;
        let not_inherited = false;
        Some(Self { kind, sided, modifiers, sender, receiver, negated, hides_itself, not_inherited, len: 0 })
    }

    fn apply_modifier(&mut self, byte: u8, text: &[u8]) -> Result<(), RuleError> {
        let merges = matches!(self.kind, RuleKind::Merge | RuleKind::DirMerge);
        match byte {
            b'/' => self.modifiers.absolute = true,
            b'p' => self.modifiers.perishable = true,
            b'x' => self.modifiers.xattr = true,
            b's' if self.sided.is_none() => self.sender = true,
            b'r' if self.sided.is_none() => self.receiver = true,
            b'!' if !merges => self.negated = true,
            b'-' if merges && self.modifiers.plain.is_none() => {
                self.modifiers.plain = Some(RuleEffect::Exclude)
            }
            b'+' if merges && self.modifiers.plain.is_none() => {
                self.modifiers.plain = Some(RuleEffect::Include)
            }
            b'e' if merges => self.hides_itself = true,
            b'n' if merges => self.not_inherited = true,
            b'w' if merges => self.modifiers.words = true,
            // `C` reads the file as CVS does: words, excludes only, not inherited.
            b'C' if merges => {
                self.modifiers.cvs = true;
                self.modifiers.words = true;
                self.modifiers.plain = Some(RuleEffect::Exclude);
                self.not_inherited = true;
            }
            b'C' => {
                return Err(RuleError::syntax_error(text, "nothing may follow '-C', what CVS leaves out"));
            }
            _ => {
                return Err(RuleError::syntax_error(text, "a modifier that this kind of rule does not take"));
            }
        }
        Ok(())
    }

    fn complete_line(
        mut self,
        pattern: &[u8],
        text: &[u8],
        from: &RuleModifiers,
    ) -> Result<ParsedLine, RuleError> {
        let own = match (self.sender, self.receiver) {
            (false, false) => self.sided,
            (sender, receiver) => Some(RuleSides { sender, receiver }),
        };
        // rsync refuses this as well: two rules would name sides for one pattern.
        if own.is_some() && from.sides.is_some() {
            return Err(RuleError::syntax_error(
                text,
                "the rule that merged its file names the sides already",
            ));
        }
        self.modifiers.sides = own.or(from.sides);
        self.modifiers.perishable |= from.perishable;
        self.modifiers.absolute |= from.absolute;
        self.modifiers.xattr |= from.xattr;
        match self.kind {
            RuleKind::Clear if pattern.trim_ascii().is_empty() => Ok(ParsedLine::Clear),
            RuleKind::Clear => Err(RuleError::syntax_error(text, "nothing may follow a rule that clears")),
            RuleKind::Effect(effect) => {
                let rule = create_plain_rule(pattern, effect, &self.modifiers)
                    .map_err(|error| error.with_rule_text(text))?;
                Ok(ParsedLine::Rule(FilterRule { negated: self.negated, ..rule }))
            }
            RuleKind::Merge | RuleKind::DirMerge => self.complete_merge(pattern, text),
        }
    }

    fn complete_merge(self, name: &[u8], text: &[u8]) -> Result<ParsedLine, RuleError> {
        let name: &[u8] = if name.is_empty() && self.modifiers.cvs { b".cvsignore" } else { name };
        let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name).to_vec();
        let mut hidden = None;
        if self.hides_itself {
            let modifiers = RuleModifiers { absolute: false, xattr: false, ..self.modifiers.clone() };
            hidden = Some(
                create_plain_rule(&base, RuleEffect::Exclude, &modifiers)
                    .map_err(|error| error.with_rule_text(text))?,
            );
        }
        if name.is_empty() || name.len() > PATTERN_MAX || name.contains(&0) {
            return Err(RuleError::syntax_error(text, "it names no file"));
        }
        if self.kind == RuleKind::Merge {
            return Ok(ParsedLine::Merge { name: name.to_vec(), modifiers: self.modifiers, hidden });
        }
        let slash = name.iter().rposition(|byte| *byte == b'/');
        let is_bad = |name: &[u8]| name == b"." || name == b"..";
        // A relative path with directories would be read from each directory of the tree and could lead out
        // of it.
        if base.is_empty()
            || is_bad(&base)
            || slash.is_some() && (!name.starts_with(b"/") || name.split(|byte| *byte == b'/').any(is_bad))
        {
            return Err(RuleError::syntax_error(
                text,
                "a file of each directory is named by one component, or an absolute path",
            ));
        }
        let from = slash.map(|slash| name.get(..slash.max(1)).unwrap_or_default().to_vec());
        let merge =
            DirMergeRule { name: base, modifiers: self.modifiers, not_inherited: self.not_inherited, from };
        Ok(ParsedLine::DirMerge { merge, hidden })
    }
}

/// The letter of a rule's kind, and the length of the kind in `text`.
fn parse_prefix(text: &[u8]) -> (u8, usize) {
    for (name, letter) in NAMES {
        if let Some(rest) = text.strip_prefix(name)
            && matches!(rest.first(), None | Some(b' ' | b'_' | b','))
        {
            return (letter, name.len());
        }
    }
    (text.first().copied().unwrap_or_default(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> FilterRule {
        match parse_rule(text.as_bytes(), &RuleModifiers::default()) {
            Ok(ParsedLine::Rule(rule)) => rule,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn prefixes_have_short_and_long_names() {
        assert_eq!(rule("- a b"), rule("exclude a b"));
        assert_eq!(rule("-_a"), rule("- a"));
        assert_eq!(rule("hide,p a"), rule("Hp a"));
        assert_eq!(rule("H a"), rule("-s a"));
        assert_eq!(rule("risk a"), rule("+r a"));
        assert_eq!(rule("-!/ a"), rule("exclude,!/ a"));
        assert_eq!(rule("-  a").pattern, b" a");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in ["x a", "-", "- ", "-q a", "Hs a", "! a", "-Ca", "merge", ": a/b", ": ..", "+e a"] {
            assert!(parse_rule(text.as_bytes(), &RuleModifiers::default()).is_err(), "{text}");
        }
    }

    #[test]
    fn words_keep_the_space_behind_a_prefix() {
        let from = RuleModifiers { words: true, ..RuleModifiers::default() };
        let said = parse_rule_file(b"- foo + bar\n  -_baz", &from, false).unwrap();
        assert_eq!(said, [rule("- foo"), rule("+ bar"), rule("- baz")].map(ParsedLine::Rule));
    }

    #[test]
    fn comments_and_empty_lines_say_nothing() {
        let said = parse_rule_file(b"# one\n\n;two\r\n- x\n", &RuleModifiers::default(), false).unwrap();
        assert_eq!(said, [ParsedLine::Rule(rule("- x"))]);
    }
}
