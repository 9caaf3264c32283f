//! Recovery codes: a secret to be written on paper, strong enough to need no slow key derivation.
//!
//! Invariant: a code that parses passed its check symbol, which catches any one wrong symbol and any two
//! neighbours exchanged. The text is a secret: it is wiped, and never part of an error or a `Debug` output.

use std::fmt;

use zeroize::Zeroizing;

use crate::nonce::fill_random;

/// Random symbols of a code, 5 bits each: 170 bits, beyond any search, and 7 groups of 5 with the check symbol.
const DATA_SYMBOLS: usize = 34;
/// Symbols of a code.
const SYMBOLS: usize = DATA_SYMBOLS + 1;
/// Symbols between dashes: what a reader holds in mind at once.
const GROUP: usize = 5;
/// Longest text that is looked at, bytes: a code with generous spacing.
const TEXT_MAX: usize = 256;

/// Crockford's base 32: no I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Why a text is not a recovery code. Says where, never what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseRecoveryError {
    /// Too few or too many symbols.
    #[error("a recovery code has {SYMBOLS} letters and digits, this text has {found}")]
    Length {
        /// How many symbols there were.
        found: usize,
    },
    /// A character that no code contains.
    #[error("character {position} cannot be part of a recovery code")]
    Character {
        /// Its place in the text, counted from 1.
        position: usize,
    },
    /// The check symbol does not match.
    #[error("the recovery code has a typing error: its last letter does not fit the others")]
    Check,
}

/// A secret of 170 bits that opens a volume when every other key is lost.
pub struct RecoveryCode(Box<Zeroizing<[u8; SYMBOLS]>>);

impl RecoveryCode {
    /// A new code from the operating system's random source.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn generate() -> Self {
        let mut code = Self(Box::new(Zeroizing::new([0; SYMBOLS])));
        let [data @ .., check] = &mut **code.0;
        fill_random(data);
        for symbol in data.iter_mut() {
            // 32 divides 256: no symbol is more likely than another.
            *symbol &= 31;
        }
        *check = compute_check_symbol(data);
        code
    }

    /// Reads what a person typed: in either case, with or without spaces and dashes, O for 0, I and L for 1.
    pub fn parse(text: &str) -> Result<Self, ParseRecoveryError> {
        let mut code = Self(Box::new(Zeroizing::new([0; SYMBOLS])));
        let mut found = 0;
        // Before the loop, so that a file given by mistake is not read through and its length is what is named.
        if text.len() > TEXT_MAX {
            return Err(ParseRecoveryError::Length { found: text.len() });
        }
        for (index, character) in text.chars().enumerate() {
            if character.is_whitespace() || matches!(character, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}') {
                continue;
            }
            // Positions are counted in characters, not in bytes: this is what a person finds in the text.
            let value =
                decode_symbol(character).ok_or(ParseRecoveryError::Character { position: index + 1 })?;
            // Counted beyond the end, too: the message names the number of symbols that were typed.
            if let Some(symbol) = code.0.get_mut(found) {
                *symbol = value;
            }
            found += 1;
        }
        if found != SYMBOLS {
            return Err(ParseRecoveryError::Length { found });
        }
        let [data @ .., check] = &**code.0;
        // Not to protect the secret, but to tell a typing error from a code of another volume before any slot is
        // tried.
        if compute_check_symbol(data) != *check {
            return Err(ParseRecoveryError::Check);
        }
        Ok(code)
    }

    /// The text to show once to its owner: seven groups of five, with dashes.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        // Reserved whole: growing would leave copies of the secret in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(SYMBOLS + SYMBOLS / GROUP));
        for (index, symbol) in self.0.iter().enumerate() {
            if index > 0 && index % GROUP == 0 {
                text.push('-');
            }
            text.push(char::from(ALPHABET[usize::from(symbol & 31)]));
        }
        text
    }

    /// The secret: the random symbols, one per byte, without the check symbol.
    pub(crate) fn secret_symbols(&self) -> &[u8; DATA_SYMBOLS] {
        let [data @ .., _] = &**self.0;
        data
    }
}

impl fmt::Debug for RecoveryCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryCode(..)")
    }
}

fn decode_symbol(character: char) -> Option<u8> {
    let wanted = match character.to_ascii_uppercase() {
        'O' => '0',
        'I' | 'L' => '1',
        other => other,
    };
    let position = ALPHABET.iter().position(|&letter| char::from(letter) == wanted)?;
    u8::try_from(position).ok()
}

// The sum of a^(i+1) · s_i over GF(32), by Horner's rule. Weights are never zero, and neighbours' weights differ,
// so that one wrong symbol or one exchange of neighbours always changes the sum.
fn compute_check_symbol(data: &[u8; DATA_SYMBOLS]) -> u8 {
    data.iter().rev().fold(0, |sum, symbol| double_symbol(sum ^ symbol))
}

// Multiplies by the generator a of GF(32) = GF(2)[a] / (a^5 + a^2 + 1).
fn double_symbol(value: u8) -> u8 {
    let shifted = value << 1;
    if shifted & 0x20 == 0 { shifted } else { shifted ^ 0x25 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &RecoveryCode, b: &RecoveryCode) -> bool {
        a.secret_symbols() == b.secret_symbols()
    }

    #[test]
    fn a_code_is_seven_groups_of_five() {
        let text = RecoveryCode::generate().to_text();
        assert!(text.split('-').map(str::len).eq([GROUP; 7]), "{}", text.as_str());
    }

    #[test]
    fn parsing_forgives_what_people_do() {
        let code = RecoveryCode::generate();
        let text = code.to_text();
        let variants = [
            text.to_lowercase(),
            text.replace('-', " "),
            text.replace('-', ""),
            text.replace('-', "\u{2013}"),
            text.replace('0', "o").replace('1', "l"),
            text.replace('0', "O").replace('1', "I"),
            format!("  {}\n", text.as_str()),
        ];
        for variant in variants {
            assert!(same(&code, &RecoveryCode::parse(&variant).expect("it parses")), "{variant:?}");
        }
    }

    #[test]
    fn every_single_error_and_every_exchange_of_neighbours_is_caught() {
        let code = RecoveryCode::generate();
        let symbols: Vec<char> = code.to_text().chars().filter(|c| *c != '-').collect();
        let parse = |symbols: &[char]| RecoveryCode::parse(&symbols.iter().collect::<String>());
        for place in 0..SYMBOLS {
            for letter in ALPHABET.iter().map(|&letter| char::from(letter)) {
                let mut wrong = symbols.clone();
                wrong[place] = letter;
                assert_eq!(parse(&wrong).is_ok(), letter == symbols[place], "at {place}");
            }
            let mut exchanged = symbols.clone();
            exchanged.swap(place, (place + 1).min(SYMBOLS - 1));
            assert_eq!(parse(&exchanged).is_ok(), exchanged == symbols, "at {place}");
        }
    }

    #[test]
    fn errors_say_where_and_not_what() {
        let error = |text: &str| RecoveryCode::parse(text).expect_err("it is no code");
        assert_eq!(error(""), ParseRecoveryError::Length { found: 0 });
        assert_eq!(error("AB"), ParseRecoveryError::Length { found: 2 });
        assert_eq!(error("AB U"), ParseRecoveryError::Character { position: 4 });
        assert_eq!(error(&"A".repeat(36)), ParseRecoveryError::Length { found: 36 });
        assert_eq!(error(&"A".repeat(1 << 20)), ParseRecoveryError::Length { found: 1 << 20 });
        assert_eq!(error(&"A".repeat(35)), ParseRecoveryError::Check);
        assert_eq!(format!("{:?}", RecoveryCode::generate()), "RecoveryCode(..)");
    }

    #[test]
    fn a_golden_code_never_changes() {
        let mut code = RecoveryCode(Box::new(Zeroizing::new([0; SYMBOLS])));
        for (symbol, value) in code.0.iter_mut().zip(0..34) {
            *symbol = value & 31;
        }
        let [data @ .., check] = &mut **code.0;
        *check = compute_check_symbol(data);
        assert_eq!(code.to_text().as_str(), "01234-56789-ABCDE-FGHJK-MNPQR-STVWX-YZ01J");
    }
}
