//! The table against a simple model: an array of bytes with the mode that each owner has on each.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Bytes of the model's files.
const BYTES: u64 = 12;
const OWNERS: usize = 5;

/// What is done, by whom.
#[derive(Debug, Clone, Copy)]
enum Step {
    Set,
    Wait,
    Test,
    Unlock,
    Cancel(usize),
    Release,
    EndSession,
    CancelSessions,
}

#[derive(Debug, Clone, Copy)]
struct Action {
    step: Step,
    owner: usize,
    ino: u64,
    kind: LockKind,
    mode: LockMode,
    range: (u64, u64),
}

/// A request that waits in the model.
#[derive(Debug, Clone, Copy)]
struct ModelWait {
    number: u64,
    request: LockRequest,
}

/// Bytes by space (of `flock` or not), file, owner.
type ModelBytes = BTreeMap<(bool, Ino, LockOwner), [Option<LockMode>; BYTES as usize]>;

/// The model.
#[derive(Default)]
struct LockModel {
    held: ModelBytes,
    waits: Vec<ModelWait>,
    ended: Vec<LockSession>,
    decided: Vec<(u64, Result<(), LockError>)>,
}

impl LockModel {
    fn conflicting_owners(&self, request: &LockRequest) -> Vec<LockOwner> {
        let bytes = request.range.start() as usize..=request.range.end().min(BYTES - 1) as usize;
        let others = self.held.iter().filter(|((is_flock, ino, owner), _)| {
            *is_flock == (request.kind == Flock) && *ino == request.ino && *owner != request.owner
        });
        let conflicting = others.filter(|(_, held)| {
            let is_exclusive = |mode: &Option<LockMode>| match mode {
                Some(mode) => *mode == Exclusive || request.mode == Exclusive,
                None => false,
            };
            held[bytes.clone()].iter().any(is_exclusive)
        });
        conflicting.map(|((_, _, owner), _)| *owner).collect()
    }

    fn put(&mut self, request: &LockRequest, mode: Option<LockMode>) {
        let key = (request.kind == Flock, request.ino, request.owner);
        let held = self.held.entry(key).or_default();
        for byte in request.range.start()..=request.range.end().min(BYTES - 1) {
            held[byte as usize] = mode;
        }
        if held.iter().all(Option::is_none) {
            self.held.remove(&key);
        }
    }

    fn set(&mut self, request: &LockRequest) -> Result<(), LockError> {
        if self.ended.contains(&request.owner.session) {
            return Err(LockError::SessionEnded);
        }
        let key = (true, request.ino, request.owner);
        if request.kind == Flock && self.held.get(&key).is_some_and(|held| held[0] != Some(request.mode)) {
            self.put(request, None);
        }
        let result = if self.conflicting_owners(request).is_empty() {
            self.put(request, Some(request.mode));
            Ok(())
        } else {
            Err(LockError::WouldBlock)
        };
        self.grant_waiting();
        result
    }

    fn wait(&mut self, request: &LockRequest, number: u64) {
        match self.set(request) {
            Err(LockError::WouldBlock)
                if request.kind == Posix && self.reaches(request, request.owner, 0) =>
            {
                self.decided.push((number, Err(LockError::Deadlock)));
            }
            Err(LockError::WouldBlock) => self.waits.push(ModelWait { number, request: *request }),
            result => self.decided.push((number, result)),
        }
    }

    /// Whether who waits for this waits for `target`, by whatever way.
    fn reaches(&self, request: &LockRequest, target: LockOwner, depth: usize) -> bool {
        depth <= OWNERS
            && self.conflicting_owners(request).into_iter().any(|owner| {
                let waits = self.waits.iter().filter(|wait| wait.request.kind == Posix);
                let mut of_owner = waits.filter(|wait| wait.request.owner == owner);
                owner == target || of_owner.any(|wait| self.reaches(&wait.request, target, depth + 1))
            })
    }

    fn grant_waiting(&mut self) {
        let is_free = |model: &Self, wait: &ModelWait| model.conflicting_owners(&wait.request).is_empty();
        while let Some(at) = self.waits.iter().position(|wait| is_free(self, wait)) {
            let wait = self.waits.remove(at);
            self.put(&wait.request, Some(wait.request.mode));
            self.decided.push((wait.number, Ok(())));
        }
    }

    fn fail_waits(&mut self, error: LockError, is_meant: impl Fn(&ModelWait) -> bool) {
        let failed: Vec<_> =
            self.waits.iter().filter(|wait| is_meant(wait)).map(|wait| wait.number).collect();
        self.waits.retain(|wait| !is_meant(wait));
        self.decided.extend(failed.into_iter().map(|number| (number, Err(error))));
    }

    fn release(&mut self, is_meant: impl Fn(bool, Ino, LockOwner) -> bool) {
        self.held.retain(|(is_flock, ino, owner), _| !is_meant(*is_flock, *ino, *owner));
        self.grant_waiting();
    }
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let step = prop_oneof![
        6 => Just(Step::Set),
        8 => Just(Step::Wait),
        2 => Just(Step::Test),
        6 => Just(Step::Unlock),
        1 => (0..8usize).prop_map(Step::Cancel),
        2 => Just(Step::Release),
        1 => Just(Step::EndSession),
        1 => Just(Step::CancelSessions),
    ];
    let range = (0..BYTES, 0..BYTES).prop_map(|(a, b)| {
        // The last byte of the model stands for all that follow.
        (a.min(b), if a.max(b) == BYTES - 1 { LockRange::LAST } else { a.max(b) })
    });
    let kind = prop_oneof![Just(Posix), Just(Ofd), Just(Flock)];
    let mode = prop_oneof![Just(Shared), Just(Exclusive)];
    let action =
        (step, 0..OWNERS, 0..2u64, kind, mode, range).prop_map(|(step, owner, ino, kind, mode, range)| {
            let range = if kind == Flock { (0, LockRange::LAST) } else { range };
            Action { step, owner, ino, kind, mode, range }
        });
    prop::collection::vec(action, 1..80)
}

/// Two owners each of sessions 1 and 2, one of session 3. Their OFD locks belong to other owners than their POSIX locks.
fn owner_of(action: &Action) -> LockOwner {
    let apart = if action.kind == Posix { 0 } else { 100 };
    owner(action.owner as u8 / 2 + 1, action.owner as u64 % 2 + apart)
}

fn perform(desk: &mut Desk, model: &mut LockModel, action: Action, number: u64) -> Result<(), TestCaseError> {
    let owner = owner_of(&action);
    let request =
        LockRequest { ino: Ino(action.ino), ..request(owner, action.kind, action.mode, action.range) };
    match action.step {
        Step::Set => prop_assert_eq!(desk.table.set(&request), model.set(&request)),
        Step::Wait => {
            desk.wait(&request, number);
            model.wait(&request, number);
        }
        Step::Test => {
            let found = desk.table.find_conflict(&request).map(|lock| lock.owner);
            prop_assert_eq!(found, model.conflicting_owners(&request).first().copied());
        }
        Step::Unlock => {
            let result = desk.table.unlock(&request);
            prop_assert_eq!(result.is_err(), model.ended.contains(&owner.session));
            model.put(&request, None);
            model.grant_waiting();
        }
        Step::Cancel(at) => {
            let Some(wait) = model.waits.get(at).copied() else { return Ok(()) };
            let session = wait.request.owner.session;
            let is_cancelled = desk.table.cancel(WaitId { session, number: wait.number });
            prop_assert!(is_cancelled);
            model.fail_waits(LockError::Interrupted, |other| other.number == wait.number);
        }
        Step::Release if action.kind == Flock => {
            desk.table.release_flock(request.ino, owner);
            model.release(|is_flock, ino, of| is_flock && ino == request.ino && of == owner);
        }
        Step::Release => {
            desk.table.release_ranges(request.ino, owner);
            model.release(|is_flock, ino, of| !is_flock && ino == request.ino && of == owner);
        }
        Step::EndSession => {
            desk.table.end_session(owner.session);
            model.fail_waits(LockError::SessionEnded, |wait| wait.request.owner.session == owner.session);
            model.ended.push(owner.session);
            model.release(|_, _, of| of.session == owner.session);
        }
        Step::CancelSessions => {
            // The connections are lost.
            for of in (1..=3).map(session) {
                desk.table.cancel_session(of);
                model.fail_waits(LockError::Interrupted, |wait| wait.request.owner.session == of);
            }
        }
    }
    Ok(())
}

/// What the table says of each byte must be what the model says.
fn compare_locks(desk: &Desk, model: &LockModel) -> Result<(), TestCaseError> {
    let mut held = ModelBytes::new();
    for ino in [Ino(0), Ino(1)] {
        for lock in desk.table.list_locks(ino) {
            let bytes = held.entry((lock.kind == Flock, ino, lock.owner)).or_default();
            for byte in lock.range.start()..=lock.range.end().min(BYTES - 1) {
                prop_assert_eq!(bytes[byte as usize], None);
                bytes[byte as usize] = Some(lock.mode);
            }
        }
    }
    prop_assert_eq!(&held, &model.held);
    let usages: Vec<_> = (1..=3).filter_map(|of| desk.table.usage(session(of))).collect();
    let used: usize = usages.iter().map(|usage| usage.locks).sum();
    let listed = [Ino(0), Ino(1)].map(|ino| desk.table.list_locks(ino).len());
    prop_assert_eq!(used, listed[0] + listed[1]);
    let waiting: usize = usages.iter().map(|usage| usage.waits).sum();
    prop_assert_eq!(waiting, model.waits.len());
    Ok(())
}

proptest! {
    #[test]
    fn the_table_does_what_a_table_of_bytes_does(actions in actions()) {
        let mut desk = Desk::new();
        let mut model = LockModel::default();
        for (number, action) in actions.into_iter().enumerate() {
            perform(&mut desk, &mut model, action, number as u64)?;
            // When a session ends, the order among its files is nobody's business.
            let by_number = |mut decided: Vec<(u64, Result<(), LockError>)>| {
                decided.sort_unstable_by_key(|(number, _)| *number);
                decided
            };
            prop_assert_eq!(by_number(desk.decided()), by_number(std::mem::take(&mut model.decided)));
            compare_locks(&desk, &model)?;
        }
    }
}
