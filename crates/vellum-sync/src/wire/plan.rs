//! Plans on the wire: the steps, whose entries are told by their numbers in the two listings.
//!
//! Bytes of a step: phase, action (u8 each), what differs (varint), and the numbers of the source's entry, the
//! destination's and the other one (varints, one more than the number; 0: none). An empty payload is the last.
//!
//! Invariant: every number of a decoded plan is of an entry that is in its listing. What steps ask for is checked where
//! they are carried out: below the root, like those of one's own plans.

use vellum_types::{DecodeError, Reader, Writer};

use super::error::WireError;
use crate::listing::{EntryId, Listing};
use crate::options::BASIS_DIRS_MAX;
use crate::plan::{Action, How, Phase, Plan, Step, What};

/// A payload is sent when it is longer than this, bytes.
const PAYLOAD_LEN: usize = 128 << 10;
/// Steps for each entry of both listings: made or deleted, linked, finished.
const STEPS_PER_ENTRY: usize = 4;

/// Says the steps of a plan in payloads, in order.
pub fn encode_plan<E>(plan: &Plan, send: &mut dyn FnMut(Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    let mut out = Writer::new();
    for step in &plan.steps {
        out.u8(step.phase as u8).u8(action_code(step.action)).varint(u64::from(step.what.0));
        for id in [step.source, step.old, step.other] {
            out.varint(id.map_or(0, |id| u64::from(id.as_u32()) + 1));
        }
        if out.as_slice().len() > PAYLOAD_LEN {
            send(std::mem::take(&mut out).into_vec())?;
        }
    }
    if !out.as_slice().is_empty() {
        send(out.into_vec())?;
    }
    send(Vec::new())
}

const HOWS: [How; 4] = [How::Whole, How::Delta, How::InPlace, How::Append];
/// Codes of the actions that take an entry from a basis directory: the first ones, for the directory of number 0.
const LINK_BASIS: u8 = 11;
const COPY_BASIS: u8 = LINK_BASIS + BASIS_DIRS_MAX as u8;
/// The actions without a number, in the order of their codes. Further codes come behind those of `COPY_BASIS`.
const ACTIONS: [Action; LINK_BASIS as usize] = [
    Action::MakeDir,
    Action::Write(How::Whole),
    Action::Write(How::Delta),
    Action::Write(How::InPlace),
    Action::Write(How::Append),
    Action::Symlink,
    Action::Special,
    Action::Link,
    Action::Attributes,
    Action::Rename,
    Action::Delete,
];
/// In the order of their numbers, which is that of carrying them out.
const PHASES: [Phase; 7] =
    [Phase::Clear, Phase::Dirs, Phase::Rename, Phase::Files, Phase::Links, Phase::Delete, Phase::Finish];

fn action_code(action: Action) -> u8 {
    match action {
        Action::MakeDir => 0,
        Action::Write(how) => 1 + HOWS.iter().position(|known| *known == how).unwrap_or(0) as u8,
        Action::Symlink => 5,
        Action::Special => 6,
        Action::Link => 7,
        Action::Attributes => 8,
        Action::Rename => 9,
        Action::Delete => 10,
        Action::LinkBasis(number) => LINK_BASIS + number,
        Action::CopyBasis(number) => COPY_BASIS + number,
    }
}

/// The action of a code.
fn action(code: u8) -> Result<Action, DecodeError> {
    let number = |first: u8| {
        let number = code.checked_sub(first)?;
        (usize::from(number) < BASIS_DIRS_MAX).then_some(number)
    };
    let known = ACTIONS.get(usize::from(code)).copied();
    let known = known.or_else(|| number(LINK_BASIS).map(Action::LinkBasis));
    known.or_else(|| number(COPY_BASIS).map(Action::CopyBasis)).ok_or(DecodeError::Invalid("action"))
}

/// A plan as it arrives.
#[derive(Debug, Default)]
pub struct PlanDecoder {
    steps: Vec<Step>,
}

impl PlanDecoder {
    /// Takes a payload of a plan between these two listings; the steps, if it was the last one.
    pub fn take(
        &mut self,
        payload: &[u8],
        from: &Listing,
        to: &Listing,
    ) -> Result<Option<Vec<Step>>, WireError> {
        if payload.is_empty() {
            return Ok(Some(std::mem::take(&mut self.steps)));
        }
        let steps_max = (from.len() + to.len()).saturating_mul(STEPS_PER_ENTRY);
        let mut bytes = Reader::new(payload);
        while bytes.remaining() > 0 {
            let step = step(&mut bytes, from, to)?;
            if self.steps.last().is_some_and(|last| last.phase > step.phase) {
                return Err(DecodeError::Invalid("phase").into());
            }
            if self.steps.len() >= steps_max {
                return Err(WireError::TooMuch("steps"));
            }
            self.steps.push(step);
        }
        Ok(None)
    }
}

fn step(bytes: &mut Reader<'_>, from: &Listing, to: &Listing) -> Result<Step, DecodeError> {
    let phase = *PHASES.get(usize::from(bytes.u8()?)).ok_or(DecodeError::Invalid("phase"))?;
    let action = action(bytes.u8()?)?;
    let what = What(u16::try_from(bytes.varint()?).map_err(|_| DecodeError::Invalid("difference"))?);
    let mut id = |listing: &Listing| -> Result<Option<EntryId>, DecodeError> {
        let Some(place) = bytes.varint_u32()?.checked_sub(1) else { return Ok(None) };
        let id = EntryId::from_u32(place).filter(|id| listing.get(*id).is_some());
        id.map(Some).ok_or(DecodeError::Invalid("entry"))
    };
    let (source, old, other) = (id(from)?, id(to)?, id(from)?);
    let complete = match action {
        Action::Delete => old.is_some(),
        Action::Rename => source.is_some() && old.is_some(),
        Action::Link => source.is_some() && other.is_some(),
        _ => source.is_some(),
    };
    if !complete {
        return Err(DecodeError::Invalid("entry"));
    }
    Ok(Step { phase, action, what, source, old, other })
}
