//! The engine on a folder that crashes, fills up, fails and rots.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod crashes;
mod damage;
mod faults;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use vellum_map::KeySpan;

use super::engine::{EmbeddedEngine, EngineLimits};
use super::hooks::NoDurabilityHooks;
use super::sim::{SimFolder, SimRandom};
use crate::error::LiveError;

/// Everything in a store.
type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// Everything that is frozen moves into runs; checkpoints are made when a test requests it.
const LIMITS: EngineLimits = EngineLimits { journal: 0, run: 0 };

fn open(folder: &Arc<SimFolder>) -> Result<EmbeddedEngine, LiveError> {
    EmbeddedEngine::open_folder(folder.clone(), Box::new(NoDurabilityHooks), LIMITS)
}

fn state(engine: &EmbeddedEngine) -> Result<State, LiveError> {
    let mut state = State::new();
    let groups = engine.groups.read();
    groups.scan(&KeySpan::all_keys(), &mut |key, value| {
        state.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(state)
}

fn put(engine: &EmbeddedEngine, key: &[u8], value: &[u8]) -> Result<u64, LiveError> {
    engine.run_transaction(&mut |txn| {
        txn.set_key(key, value.into());
        Ok(())
    })
}

fn drop_prefix(engine: &EmbeddedEngine, prefix: &[u8]) -> Result<u64, LiveError> {
    engine.run_transaction(&mut |txn| {
        txn.delete_prefix(prefix);
        Ok(())
    })
}

fn checkpoint(engine: &EmbeddedEngine) -> Result<(), LiveError> {
    engine.checkpoint_journal(&mut engine.maintenance.lock())
}

fn layer(number: u8) -> [u8; 9] {
    [b'l', 0, 0, 0, 0, 0, 0, 0, number]
}

fn key(number: u8, rest: &str) -> Vec<u8> {
    [&layer(number)[..], rest.as_bytes()].concat()
}
