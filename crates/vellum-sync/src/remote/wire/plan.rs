//! Plans on the wire: their steps, with entry numbers of the two listings.
//!
//! Bytes of a step: phase, action (u8 each), the differences (varint), and the numbers of the source's entry, the
//! destination's and the other one (varints, each the number plus one; 0: none). An empty payload is the last.
//!
//! Invariant: every number of a decoded plan is that of an entry in its listing. The effects of steps are restricted
//! where they are carried out: below the root, like those of local plans.

use vellum_types::{DecodeError, FieldReader, FieldWriter};

use super::error::WireError;
use crate::model::listing::{ListingEntryId, TreeListing};
use crate::model::options::BASIS_DIRS_MAX;
use crate::plan::{Differences, StepAction, StepPhase, SyncPlan, SyncStep, WriteMethod};

/// A payload is sent when it is longer than this, bytes.
const PAYLOAD_LEN: usize = 128 << 10;
/// Most steps for each entry of both listings: created or deleted, linked, finished.
const STEPS_PER_ENTRY: usize = 4;

/// Encodes the steps of a plan in payloads, in order.
pub fn encode_plan<E>(plan: &SyncPlan, send: &mut dyn FnMut(Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    let mut out = FieldWriter::new();
    for step in &plan.steps {
        out.write_u8(step.phase as u8)
            .write_u8(encode_action(step.action))
            .write_varint(u64::from(step.what.0));
        for id in [step.source, step.old, step.other] {
            out.write_varint(id.map_or(0, |id| u64::from(id.as_u32()) + 1));
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

const HOWS: [WriteMethod; 4] =
    [WriteMethod::Whole, WriteMethod::Delta, WriteMethod::InPlace, WriteMethod::Append];
/// The first code of each action that takes an entry from a basis directory; the directory's number is added.
const LINK_BASIS: u8 = 11;
const COPY_BASIS: u8 = LINK_BASIS + BASIS_DIRS_MAX as u8;
/// The actions without a directory number, in the order of their codes. Further codes follow those of `COPY_BASIS`.
const ACTIONS: [StepAction; LINK_BASIS as usize] = [
    StepAction::MakeDir,
    StepAction::Write(WriteMethod::Whole),
    StepAction::Write(WriteMethod::Delta),
    StepAction::Write(WriteMethod::InPlace),
    StepAction::Write(WriteMethod::Append),
    StepAction::Symlink,
    StepAction::Special,
    StepAction::Link,
    StepAction::Attributes,
    StepAction::Rename,
    StepAction::Delete,
];
/// The phases in the order of their codes, which is the order in which they are carried out.
const PHASES: [StepPhase; 7] = [
    StepPhase::Clear,
    StepPhase::Dirs,
    StepPhase::Rename,
    StepPhase::Files,
    StepPhase::Links,
    StepPhase::Delete,
    StepPhase::Finish,
];

fn encode_action(action: StepAction) -> u8 {
    match action {
        StepAction::MakeDir => 0,
        StepAction::Write(how) => 1 + HOWS.iter().position(|known| *known == how).unwrap_or(0) as u8,
        StepAction::Symlink => 5,
        StepAction::Special => 6,
        StepAction::Link => 7,
        StepAction::Attributes => 8,
        StepAction::Rename => 9,
        StepAction::Delete => 10,
        StepAction::LinkBasis(number) => LINK_BASIS + number,
        StepAction::CopyBasis(number) => COPY_BASIS + number,
    }
}

/// Decodes the action of a code.
fn decode_action(code: u8) -> Result<StepAction, DecodeError> {
    let number = |first: u8| {
        let number = code.checked_sub(first)?;
        (usize::from(number) < BASIS_DIRS_MAX).then_some(number)
    };
    let known = ACTIONS.get(usize::from(code)).copied();
    let known = known.or_else(|| number(LINK_BASIS).map(StepAction::LinkBasis));
    known.or_else(|| number(COPY_BASIS).map(StepAction::CopyBasis)).ok_or(DecodeError::Invalid("action"))
}

/// Decodes a plan as it arrives.
#[derive(Debug, Default)]
pub struct PlanDecoder {
    steps: Vec<SyncStep>,
}

impl PlanDecoder {
    /// Decodes a payload of a plan between these two listings; returns the steps after the last one.
    pub fn decode_payload(
        &mut self,
        payload: &[u8],
        from: &TreeListing,
        to: &TreeListing,
    ) -> Result<Option<Vec<SyncStep>>, WireError> {
        if payload.is_empty() {
            return Ok(Some(std::mem::take(&mut self.steps)));
        }
        // An honest plan has a few steps for each entry. A hostile one could repeat a step forever.
        let steps_max = (from.len() + to.len()).saturating_mul(STEPS_PER_ENTRY);
        let mut bytes = FieldReader::new(payload);
        while bytes.remaining() > 0 {
            let step = decode_step(&mut bytes, from, to)?;
            // Execution finds the steps of a phase by binary search, which requires this order.
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

fn decode_step(
    bytes: &mut FieldReader<'_>,
    from: &TreeListing,
    to: &TreeListing,
) -> Result<SyncStep, DecodeError> {
    let phase = *PHASES.get(usize::from(bytes.read_u8()?)).ok_or(DecodeError::Invalid("phase"))?;
    let action = decode_action(bytes.read_u8()?)?;
    let what =
        Differences(u16::try_from(bytes.read_varint()?).map_err(|_| DecodeError::Invalid("difference"))?);
    let mut id = |listing: &TreeListing| -> Result<Option<ListingEntryId>, DecodeError> {
        let Some(place) = bytes.read_varint_u32()?.checked_sub(1) else { return Ok(None) };
        let id = ListingEntryId::from_u32(place).filter(|id| listing.get(*id).is_some());
        id.map(Some).ok_or(DecodeError::Invalid("entry"))
    };
    let source = id(from)?;
    let old = id(to)?;
    let other = id(from)?;
    // Execution passes over steps without their entries; refusing them here reports the defect of the peer.
    let complete = match action {
        StepAction::Delete => old.is_some(),
        StepAction::Rename => source.is_some() && old.is_some(),
        StepAction::Link => source.is_some() && other.is_some(),
        _ => source.is_some(),
    };
    if !complete {
        return Err(DecodeError::Invalid("entry"));
    }
    Ok(SyncStep { phase, action, what, source, old, other })
}
