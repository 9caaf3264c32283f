//! The attributes of an inode without its inline content: names, times and modes change without that of a small file
//! being read or copied.
//!
//! Invariant: the stored form of an inode is that of its bare attributes, and its inline content behind it.

use super::{DecodedFields, HAS_INLINE, InodeAttr};
use crate::codec::{DecodeError, FieldReader, FieldWriter};

/// An inode's attributes without its inline content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BareInodeAttr {
    /// The attributes. Their `inline` is None, whether content is inline or not.
    pub attr: InodeAttr,
    /// Whether the whole content is inline: `attr.size` bytes.
    pub has_inline: bool,
}

impl BareInodeAttr {
    /// Reads the stored form of an inode, and passes over its content. Refuses what [`InodeAttr::decode`] refuses.
    pub fn decode(whole: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(whole);
        let bare = Self::from_fields(InodeAttr::decode_fields(&mut reader)?);
        if bare.has_inline {
            // The content is passed over, and still has to be as long as the attributes say.
            bare.attr.check_inline_len(reader.read_rest().len())?;
        }
        reader.expect_end()?;
        Ok(bare)
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode_bare(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader::new(bytes);
        let bare = Self::from_fields(InodeAttr::decode_fields(&mut reader)?);
        if bare.has_inline {
            // Without the content, only the attributes tell its length: what no inline content can have is refused
            // here, too.
            let len = usize::try_from(bare.attr.size).map_err(|_| DecodeError::Invalid("size"))?;
            bare.attr.check_inline_len(len)?;
        }
        reader.expect_end()?;
        Ok(bare)
    }

    /// The stored form of the inode up to its content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::from_vec(Vec::with_capacity(self.attr.fields_capacity()));
        self.attr.encode_fields(&mut writer, self.has_inline);
        writer.into_vec()
    }

    /// The same of an inode that is known whole. Its content is not copied.
    #[must_use]
    pub fn copy_of(whole: &InodeAttr) -> Self {
        // Field by field, because a clone of the whole would copy the content first.
        let attr =
            InodeAttr { name: whole.name.clone(), target: whole.target.clone(), inline: None, ..*whole };
        Self { attr, has_inline: whole.inline.is_some() }
    }

    /// The attributes together with the content; None is content that is not inline.
    #[must_use]
    pub fn with_inline(self, inline: Option<Vec<u8>>) -> InodeAttr {
        InodeAttr { inline, ..self.attr }
    }

    fn from_fields(fields: DecodedFields) -> Self {
        Self { attr: fields.attr, has_inline: fields.flags & HAS_INLINE != 0 }
    }
}

impl From<InodeAttr> for BareInodeAttr {
    fn from(attr: InodeAttr) -> Self {
        // The content is dropped here, not copied.
        Self { has_inline: attr.inline.is_some(), attr: InodeAttr { inline: None, ..attr } }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::value::FileKind;

    fn file(inline: Option<&[u8]>) -> InodeAttr {
        let mut attr = InodeAttr::new(FileKind::File, 0o644);
        attr.name = b"f".to_vec();
        attr.size = inline.map_or(70_000, |content| content.len() as u64);
        attr.inline = inline.map(<[u8]>::to_vec);
        attr
    }

    #[test]
    fn an_inode_is_its_bare_attributes_and_its_content() {
        for inline in [None, Some(&b""[..]), Some(b"x"), Some(&[7; 4096])] {
            let whole = file(inline);
            let bare = BareInodeAttr::decode(&whole.encode()).unwrap();
            assert_eq!([BareInodeAttr::copy_of(&whole), whole.clone().into()], [bare.clone(), bare.clone()]);
            assert_eq!([bare.encode(), inline.unwrap_or_default().to_vec()].concat(), whole.encode());
            assert_eq!(BareInodeAttr::decode_bare(&bare.encode()), Ok(bare.clone()));
            assert_eq!(bare.with_inline(inline.map(<[u8]>::to_vec)), whole);
        }
    }

    #[test]
    fn content_of_another_length_is_refused() {
        let mut stored = file(Some(b"four")).encode();
        stored.push(0);
        assert_eq!(BareInodeAttr::decode(&stored), Err(DecodeError::Invalid("size")));
        stored.truncate(stored.len() - 2);
        assert_eq!(BareInodeAttr::decode(&stored), Err(DecodeError::Invalid("size")));
        assert!(BareInodeAttr::decode_bare(&stored).is_err(), "there is content in it");
        let large = BareInodeAttr { has_inline: true, ..BareInodeAttr::from(file(None)) };
        assert!(BareInodeAttr::decode_bare(&large.encode()).is_err(), "so much is never inline");
    }
}
