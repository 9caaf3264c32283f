//! Loans: trees of which layers name content though the worktree does not stand on them. What is copied from a snapshot
//! shares its chunks, and until that is published nothing in the store but the snapshot says so.
//!
//! Invariant: a loan is entered before the first layer names anything of its tree, and goes when no layer is left that
//! may. As long as it is there the worktree's ref names the tree, so that no collection takes it, whoever forgets the
//! snapshot. Deliberately absent: which chunks, and of which files.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use vellum_live::{LiveError, Transaction, Visit};
use vellum_map::{Root, Span};
use vellum_types::{BlobId, DecodeError, Reader, Writer};
use vellum_volume::VolumeError;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::head::{LOANS, LayerId, State, loan_key};
use crate::tree::damaged;
use crate::view::View;

/// A tree, and the layers that may name content of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Loan {
    root: Root,
    first: LayerId,
    /// Greatest there is: content is being taken.
    last: LayerId,
}

/// As long as this lives, content may be taken.
pub(crate) struct Borrowing<'f> {
    fs: &'f Fs,
    numbers: Vec<u64>,
}

const OPEN: LayerId = LayerId(u64::MAX);

impl Loan {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(self.root.0.as_bytes()).varint(self.first.0).varint(self.last.0);
        writer.into_vec()
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let root = Root(BlobId(reader.array()?));
        let (first, last) = (LayerId(reader.varint()?), LayerId(reader.varint()?));
        reader.finish()?;
        Ok(Self { root, first, last })
    }

    fn is_of(&self, layers: &BTreeSet<LayerId>) -> bool {
        layers.range(self.first..=self.last).next().is_some()
    }
}

/// All loans with their numbers. `scan` is a store's or a transaction's.
fn all_loans(
    scan: impl FnOnce(&Span, &mut Visit<'_>) -> std::result::Result<(), LiveError>,
) -> Result<Vec<(u64, Loan)>> {
    let mut found: Vec<Result<_>> = Vec::new();
    scan(&Span::prefix(LOANS), &mut |key, value| {
        let number = key.last_chunk().map_or(0, |digits| u64::from_be_bytes(*digits));
        found.push(Loan::decode(value).map(|loan| (number, loan)).map_err(damaged("a loan")));
        ControlFlow::Continue(())
    })?;
    found.into_iter().collect()
}

fn put(txn: &mut dyn Transaction, number: u64, loan: &Loan) {
    txn.put(&loan_key(number), loan.encode().into());
}

impl Fs {
    /// To be held while content is taken from a view by reference: until what was taken is published, the worktree's ref
    /// names the tree that has it. An error if it is a snapshot's that was forgotten meanwhile.
    pub(crate) fn borrow(&self, view: &View) -> Result<Borrowing<'_>> {
        let state = view.state();
        let random = getrandom::u64().map_err(|error| VolumeError::local("/dev/urandom")(error.into()))?;
        let (numbers, _) = self.tree.change_head(|head, txn| {
            let mut numbers = Vec::new();
            for root in lenders(state, &all_loans(|span, visit| txn.scan(span, visit))?) {
                let number = random.wrapping_add(numbers.len() as u64);
                put(txn, number, &Loan { root, first: head.top(), last: OPEN });
                numbers.push(number);
            }
            Ok(numbers)
        })?;
        let borrowing = Borrowing { fs: self, numbers };
        let (Some(tenure), Some(id)) = (&self.tenure, view.snapshot()) else { return Ok(borrowing) };
        match tenure.renew().map_err(FsError::from) {
            // Whoever forgets it from now on, a collection that does not find it among the snapshots finds it here.
            Ok(()) if self.volume.catalog.is_kept(&id)? => Ok(borrowing),
            Ok(()) => Err(VolumeError::MissingRecord(id).into()),
            Err(error) if error.is_fenced() => Err(error),
            // A store that is away stops nobody. It is told when it is back.
            Err(_) => Ok(borrowing),
        }
    }

    /// The trees of which layers may name content.
    pub(crate) fn lenders(&self) -> Result<Vec<Root>> {
        let live = self.tree.live();
        Ok(all_loans(|span, visit| live.scan(span, visit))?.into_iter().map(|(_, loan)| loan.root).collect())
    }

    /// What an earlier run was taking when it ended was taken by then.
    pub(crate) fn end_borrowing(&self) -> Result<()> {
        let live = self.tree.live();
        let loans = all_loans(|span, visit| live.scan(span, visit))?;
        let open =
            loans.into_iter().filter(|(_, loan)| loan.last == OPEN).map(|(number, _)| number).collect();
        drop(Borrowing { fs: self, numbers: open });
        Ok(())
    }
}

/// The tree of a state, and those of which its layers may name content.
fn lenders(state: &State, loans: &[(u64, Loan)]) -> BTreeSet<Root> {
    let layers = state.layers.iter().copied().collect();
    let above = loans.iter().filter(|(_, loan)| loan.is_of(&layers)).map(|(_, loan)| loan.root);
    above.chain([state.base]).collect()
}

/// The layers of a state were published, and an amendment lies over their tree: it may name what they had borrowed.
pub(crate) fn pass_on(txn: &mut dyn Transaction, done: &State, amendment: LayerId) -> Result<()> {
    let loans = all_loans(|span, visit| txn.scan(span, visit))?;
    let layers = done.layers.iter().copied().collect();
    for (number, loan) in loans.into_iter().filter(|(_, loan)| loan.is_of(&layers)) {
        put(txn, number, &Loan { last: loan.last.max(amendment), ..loan });
    }
    Ok(())
}

/// Ends the loans of which no layer is left.
pub(crate) fn give_back(txn: &mut dyn Transaction, needed: &BTreeSet<LayerId>) -> Result<()> {
    for (number, loan) in all_loans(|span, visit| txn.scan(span, visit))? {
        if !loan.is_of(needed) {
            txn.delete(&loan_key(number));
        }
    }
    Ok(())
}

impl Drop for Borrowing<'_> {
    fn drop(&mut self) {
        if self.numbers.is_empty() {
            return;
        }
        // A loan that is not ended here ends when the worktree is opened the next time.
        let _ = self.fs.tree.change_head(|head, txn| {
            for (number, loan) in all_loans(|span, visit| txn.scan(span, visit))? {
                if self.numbers.contains(&number) {
                    put(txn, number, &Loan { last: head.top(), ..loan });
                }
            }
            Ok(())
        });
    }
}
