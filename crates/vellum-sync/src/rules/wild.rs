//! Patterns with wildcards, as automata whose states are tracked in parallel.
//!
//! Invariant: a match reads each byte once and visits each state at most once for each byte. A malformed pattern (a
//! class without an end or with an unknown name) matches nothing.

/// States that fit on the stack, in words of 64; a longer pattern allocates memory for a match.
const STACK_WORDS: usize = 4;

/// One element of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WildcardToken {
    Byte(u8),
    /// `?`: any byte but a slash.
    One,
    /// `[…]`: a set of bytes, one bit each.
    Class(Box<[u64; 4]>),
    /// `*`: any bytes but slashes.
    Star,
    /// `**`: any bytes.
    Stars,
}

/// A pattern with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WildcardPattern {
    /// It is malformed and matches nothing.
    tokens: Option<Vec<WildcardToken>>,
    /// The bytes at its end, which exclude most names at once.
    tail: Vec<u8>,
}

impl WildcardPattern {
    pub(super) fn new(text: &[u8]) -> Self {
        let tokens = parse_tokens(text);
        let mut tail: Vec<u8> = tokens
            .iter()
            .flatten()
            .rev()
            .map_while(|token| if let WildcardToken::Byte(byte) = token { Some(*byte) } else { None })
            .collect();
        tail.reverse();
        Self { tokens, tail }
    }

    /// Whether the concatenated pieces match; with `after_slashes` also the part after any slash.
    pub(super) fn matches_pieces(&self, pieces: [&[u8]; 3], after_slashes: bool) -> bool {
        let Some(tokens) = &self.tokens else { return false };
        let [_, text, after] = pieces;
        // Most names are rejected by their ending (`*.o`) without running the automaton.
        if after.is_empty() && text.len() >= self.tail.len() && !text.ends_with(&self.tail) {
            return false;
        }
        let words = tokens.len() / 64 + 1;
        if words <= STACK_WORDS {
            let mut now = [0; STACK_WORDS];
            let mut next = [0; STACK_WORDS];
            let (Some(now), Some(next)) = (now.get_mut(..words), next.get_mut(..words)) else { return false };
            run_automaton(tokens, pieces, after_slashes, now, next)
        } else {
            let mut now = vec![0; words];
            let mut next = vec![0; words];
            run_automaton(tokens, pieces, after_slashes, &mut now, &mut next)
        }
    }
}

/// Runs the automaton: bit `i` of `now` means that the tokens before `i` have matched.
fn run_automaton<'s>(
    tokens: &[WildcardToken],
    pieces: [&[u8]; 3],
    after_slashes: bool,
    mut now: &'s mut [u64],
    mut next: &'s mut [u64],
) -> bool {
    enter_state(tokens, now, 0);
    for byte in pieces.into_iter().flatten().copied() {
        next.fill(0);
        let mut alive = false;
        for (word, bits) in now.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(to) = tokens.get(at).and_then(|token| next_state(token, byte, at)) {
                    enter_state(tokens, next, to);
                    alive = true;
                }
            }
        }
        if after_slashes && byte == b'/' {
            enter_state(tokens, next, 0);
            alive = true;
        }
        // No state is left, so nothing that follows can match.
        if !alive && !after_slashes {
            return false;
        }
        std::mem::swap(&mut now, &mut next);
    }
    is_state_set(now, tokens.len())
}

/// Sets a state, and those that are reachable from it without a byte.
fn enter_state(tokens: &[WildcardToken], states: &mut [u64], mut at: usize) {
    loop {
        // Each state is entered once for each byte, which bounds the time.
        if is_state_set(states, at) {
            return;
        }
        if let Some(word) = states.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
        match tokens.get(at) {
            Some(WildcardToken::Star | WildcardToken::Stars) => at += 1,
            _ => return,
        }
    }
}

fn is_state_set(states: &[u64], at: usize) -> bool {
    states.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}

/// The state after `byte` from the state before `token`, whose number is `at`.
fn next_state(token: &WildcardToken, byte: u8, at: usize) -> Option<usize> {
    match token {
        WildcardToken::Byte(wanted) => (*wanted == byte).then_some(at + 1),
        WildcardToken::One => (byte != b'/').then_some(at + 1),
        // No class matches a slash, not even a negated one.
        WildcardToken::Class(set) => (byte != b'/' && contains_byte(set, byte)).then_some(at + 1),
        WildcardToken::Star => (byte != b'/').then_some(at),
        WildcardToken::Stars => Some(at),
    }
}

fn contains_byte(set: &[u64; 4], byte: u8) -> bool {
    set.get(usize::from(byte / 64)).is_some_and(|word| word >> (byte % 64) & 1 == 1)
}

fn parse_tokens(text: &[u8]) -> Option<Vec<WildcardToken>> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        tokens.push(match first {
            b'*' => {
                // Three and more stars mean the same as two.
                let more = rest.iter().take_while(|byte| **byte == b'*').count();
                rest = rest.get(more..)?;
                if more > 0 { WildcardToken::Stars } else { WildcardToken::Star }
            }
            b'?' => WildcardToken::One,
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                rest = after;
                WildcardToken::Byte(*escaped)
            }
            b'[' => {
                let (set, after) = parse_class(rest)?;
                rest = after;
                WildcardToken::Class(Box::new(set))
            }
            byte => WildcardToken::Byte(*byte),
        });
    }
    Some(tokens)
}

/// Parses a class after its opening bracket; returns it with the rest after its closing one.
fn parse_class(text: &[u8]) -> Option<([u64; 4], &[u8])> {
    let (negated, mut rest) = match text {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut set = [0; 4];
    let mut previous = None;
    let mut first = true;
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match (*byte, previous) {
            // A bracket directly after the opening one is a member of the class, as in POSIX.
            (b']', _) if !first => break,
            (b'-', Some(from)) if rest.first().is_some_and(|next| *next != b']') => {
                let (to, after) = parse_range_end(rest)?;
                rest = after;
                (from..=to).for_each(|byte| add_byte(&mut set, byte));
                previous = None;
            }
            (b'[', _) if rest.first() == Some(&b':') => match parse_named_class(rest) {
                ClassMember::Class(member, after) => {
                    (0..=255).filter(member).for_each(|byte| add_byte(&mut set, byte));
                    rest = after;
                    previous = None;
                }
                ClassMember::NoClass => {
                    add_byte(&mut set, b'[');
                    previous = Some(b'[');
                }
                ClassMember::Unknown => return None,
            },
            (byte, _) => {
                let literal = if byte == b'\\' {
                    let (escaped, after) = rest.split_first()?;
                    rest = after;
                    *escaped
                } else {
                    byte
                };
                add_byte(&mut set, literal);
                previous = Some(literal);
            }
        }
        first = false;
    }
    if negated {
        set = set.map(|word| !word);
    }
    Some((set, rest))
}

/// The upper end of a range, which may be escaped.
fn parse_range_end(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => Some((*byte, rest)),
        [] => None,
    }
}

fn add_byte(set: &mut [u64; 4], byte: u8) {
    if let Some(word) = set.get_mut(usize::from(byte / 64)) {
        *word |= 1 << (byte % 64);
    }
}

/// The parse of `[:` in a class.
enum ClassMember<'t> {
    Class(fn(&u8) -> bool, &'t [u8]),
    /// There is no `:]`: the bracket is an ordinary character.
    NoClass,
    /// The name is unknown, or there is no end: the whole pattern matches nothing.
    Unknown,
}

/// Parses a named class from its first colon.
fn parse_named_class(text: &[u8]) -> ClassMember<'_> {
    let Some(end) = text.iter().position(|byte| *byte == b']') else { return ClassMember::Unknown };
    let (Some(inside), Some(rest)) = (text.get(1..end), text.get(end + 1..)) else {
        return ClassMember::Unknown;
    };
    let Some(name) = inside.strip_suffix(b":") else { return ClassMember::NoClass };
    let member: fn(&u8) -> bool = match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return ClassMember::Unknown,
    };
    ClassMember::Class(member, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains_byte(pattern: &str, text: &str) -> bool {
        WildcardPattern::new(pattern.as_bytes()).matches_pieces([b"", text.as_bytes(), b""], false)
    }

    #[test]
    fn classes_are_those_of_the_shell() {
        assert!(contains_byte("[a-c]x", "bx") && !contains_byte("[a-c]x", "dx"));
        assert!(contains_byte("[!a-c]", "d") && contains_byte("[^a]", "b") && !contains_byte("[^a]", "/"));
        assert!(contains_byte("[]x]", "]") && contains_byte("[a-]", "-") && contains_byte("[\\]]", "]"));
        assert!(
            contains_byte("[[:digit:]_]", "7")
                && contains_byte("[[:digit:]_]", "_")
                && !contains_byte("[[:digit:]_]", "a")
        );
        assert!(contains_byte("[[:ab]", ":") && contains_byte("[[:ab]", "["));
        assert!(
            !contains_byte("[abc", "a")
                && !contains_byte("[[:nonsense:]]", "n")
                && !contains_byte("a\\", "a\\")
        );
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let text = "a".repeat(4000);
        assert!(!contains_byte(&("*a".repeat(100) + "b*c"), &text));
        assert!(!contains_byte(&("**a*".repeat(400) + "?x?"), &text));
        assert!(contains_byte(&"**a*".repeat(400), &text));
    }
}
