//! Identifiers: newtypes over bytes, shown in lower-case hexadecimal.

use std::fmt;
use std::str::FromStr;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an identifier of {expected} hexadecimal digits: {text:?}")]
pub struct ParseIdError {
    expected: usize,
    text: String,
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Length in bytes.
            pub const LEN: usize = $len;

            /// The identifier in these bytes, if there are exactly as many as it has.
            #[must_use]
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }

            /// The raw bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut digits = [0; 2 * $len];
                f.write_str(write_hex(&self.0, &mut digits))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self).ok_or_else(|| ParseIdError { expected: 2 * $len, text: text.into() })
            }
        }
    };
}

/// Digits are looked up: an id is formatted for every object that is touched.
fn write_hex<'d>(bytes: &[u8], digits: &'d mut [u8]) -> &'d str {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    // Digits are ASCII, so that this cannot fail.
    std::str::from_utf8(digits).unwrap_or_default()
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    // The loop below would not notice digits that are missing or left over.
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        // Each chunk has two bytes, which its type does not say.
        let [high, low] = pair else { return None };
        let high = HEX_VALUES[usize::from(*high)];
        let low = HEX_VALUES[usize::from(*low)];
        // Bytes that are no digits have the value 255, whose high bits stay set.
        if high | low > 15 {
            return None;
        }
        *byte = high << 4 | low;
    }
    Some(out)
}

/// The value of each lowercase hexadecimal digit; 255 for all other bytes.
const HEX_VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    // A `for` loop cannot be evaluated at compile time.
    while value < 16 {
        // Lower case only, so that an identifier has one spelling.
        values[b"0123456789abcdef"[value as usize] as usize] = value;
        value += 1;
    }
    values
};

id_type!(
    /// Keyed BLAKE3 of a blob's plaintext: identity, integrity and address in one.
    BlobId, 32
);
id_type!(
    /// Name of a pack object: BLAKE3 of all its (sealed) bytes.
    PackId, 32
);
id_type!(
    /// Name of a snapshot: keyed BLAKE3 of its record's plaintext.
    SnapshotId, 32
);
id_type!(
    /// A volume's random identity, made by `init`.
    VolumeId, 16
);

/// What a blob holds. The two kinds have separate id keys and separate packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobKind {
    /// A piece of file content.
    Chunk,
    /// A page of a Merkle search tree.
    Node,
}

impl BlobKind {
    /// The byte that stands for this kind in stored formats.
    #[must_use]
    pub fn as_byte(self) -> u8 {
        match self {
            // The numbers are stored. Zeroed bytes stand for neither kind.
            Self::Chunk => 1,
            Self::Node => 2,
        }
    }

    /// The kind that a stored byte stands for.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Chunk),
            2 => Some(Self::Node),
            _ => None,
        }
    }
}

impl fmt::Display for BlobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chunk => "chunk",
            Self::Node => "node",
        })
    }
}

/// Number of an inode within one worktree. Stable across its snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// Holds what belongs to the filesystem as a whole (the counter of inode numbers), no file.
    pub const SUPER: Self = Self(0);
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip() {
        let id = VolumeId(*b"0123456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn foreign_digits_and_lengths_are_refused() {
        let good = VolumeId([0xab; 16]).to_string();
        assert!(good.to_uppercase().parse::<VolumeId>().is_err());
        assert!(good[1..].parse::<VolumeId>().is_err());
        assert!(format!("{good}00").parse::<VolumeId>().is_err());
    }
}
