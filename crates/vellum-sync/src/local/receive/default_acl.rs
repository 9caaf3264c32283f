//! The default ACL of a directory: it limits the modes of new entries there, instead of the umask.
//!
//! The format is the kernel's (`linux/posix_acl_xattr.h`): a version, then entries of a tag, permissions and a number,
//! all little endian.

use vellum_host::beneath::HeldNode;

const NAME: &[u8] = b"system.posix_acl_default";
const VERSION: u32 = 2;
const USER_OBJ: u16 = 1;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;
/// Bytes of one entry.
const ENTRY_LEN: usize = 8;

/// The mode bits that the default ACL of a directory allows for new entries; None if there is no default ACL.
pub(super) fn read_allowed_mode(dir: &HeldNode<'_>) -> Option<u32> {
    decode_acl_mode(&dir.read_xattr(NAME).ok()??)
}

fn decode_acl_mode(acl: &[u8]) -> Option<u32> {
    let (version, entries) = acl.split_first_chunk()?;
    let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
    // An ACL of an unknown form is treated as none: the umask applies, as in a directory without a default
    // ACL.
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return None;
    }
    let bits = |wanted: u16| {
        entries.iter().find_map(|[a, b, c, d, ..]| {
            (u16::from_le_bytes([*a, *b]) == wanted).then(|| u32::from(u16::from_le_bytes([*c, *d])) & 7)
        })
    };
    // With a mask the group's bits of the mode are the mask's.
    let group = bits(MASK).or_else(|| bits(GROUP_OBJ))?;
    Some(bits(USER_OBJ)? << 6 | group << 3 | bits(OTHER)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_stands_for_the_group() {
        let entry = |tag: u16, bits: u16| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
        };
        let acl = |entries: &[Vec<u8>]| [&VERSION.to_le_bytes()[..], &entries.concat()].concat();
        let three = [entry(USER_OBJ, 7), entry(GROUP_OBJ, 5), entry(OTHER, 0)];
        assert_eq!(decode_acl_mode(&acl(&three)), Some(0o750));
        let masked = [&three[..], &[entry(2, 7), entry(MASK, 7)]].concat();
        assert_eq!(decode_acl_mode(&acl(&masked)), Some(0o770));
        assert_eq!(decode_acl_mode(&acl(&three[..2])), None);
        assert_eq!(decode_acl_mode(b"short"), None);
    }
}
