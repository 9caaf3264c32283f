//! The conditions of a request (RFC 9110, section 13), which `s3s` parses and does not evaluate.

use s3s::dto::{ETag, ETagCondition, Timestamp};
use s3s::{S3Result, s3_error};

/// What a request asks to hold.
#[derive(Debug, Default)]
pub struct ReadConditions {
    /// `If-Match`.
    pub if_match: Option<ETagCondition>,
    /// `If-None-Match`.
    pub if_none_match: Option<ETagCondition>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<Timestamp>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<Timestamp>,
}

impl ReadConditions {
    /// Fails if the object with this tag and time is not to be sent. A condition about the tag stands above one about the time;
    /// times are compared by the second, as they are sent.
    pub fn check(&self, tag: &ETag, modified: &Timestamp) -> S3Result<()> {
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(wanted), _)
                if !wanted.is_any() && !wanted.as_etag().is_some_and(|wanted| wanted.strong_cmp(tag)) =>
            {
                return Err(s3_error!(PreconditionFailed));
            }
            (None, Some(since)) if modified > since => return Err(s3_error!(PreconditionFailed)),
            (Some(_) | None, _) => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(known), _)
                if known.is_any() || known.as_etag().is_some_and(|known| known.weak_cmp(tag)) =>
            {
                Err(s3_error!(NotModified))
            }
            (None, Some(since)) if modified <= since => Err(s3_error!(NotModified)),
            (Some(_) | None, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn conditions_are_those_of_rfc_9110() {
        let tag = || ETag::Strong("a".into());
        let at = |seconds| Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds));
        let is = |tag| Some(ETagCondition::ETag(tag));
        let other = || ETag::Strong("b".into());
        let none = ReadConditions::default;
        for (conditions, passes) in [
            (none(), true),
            (ReadConditions { if_match: is(tag()), ..none() }, true),
            (ReadConditions { if_match: Some(ETagCondition::Any), ..none() }, true),
            (ReadConditions { if_match: is(other()), ..none() }, false),
            (ReadConditions { if_match: is(ETag::Weak("a".into())), ..none() }, false),
            (ReadConditions { if_none_match: is(tag()), ..none() }, false),
            (ReadConditions { if_none_match: is(ETag::Weak("a".into())), ..none() }, false),
            (ReadConditions { if_none_match: Some(ETagCondition::Any), ..none() }, false),
            (ReadConditions { if_none_match: is(other()), ..none() }, true),
            (ReadConditions { if_modified_since: Some(at(10)), ..none() }, false),
            (ReadConditions { if_modified_since: Some(at(9)), ..none() }, true),
            (ReadConditions { if_unmodified_since: Some(at(10)), ..none() }, true),
            (ReadConditions { if_unmodified_since: Some(at(9)), ..none() }, false),
            // The tag decides, not the time.
            (ReadConditions { if_match: is(tag()), if_unmodified_since: Some(at(9)), ..none() }, true),
            (ReadConditions { if_none_match: is(other()), if_modified_since: Some(at(11)), ..none() }, true),
        ] {
            assert_eq!(conditions.check(&tag(), &at(10)).is_ok(), passes, "{conditions:?}");
        }
    }
}
