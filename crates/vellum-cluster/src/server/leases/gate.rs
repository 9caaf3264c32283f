//! Where an operation waits until no client uses what it changes.
//!
//! Invariant: what a name stands for is the same when it is looked up here and when the operation is carried out, since
//! all changes of one name pass here one after the other.

use std::sync::Arc;

use vellum_fuse::transport::{ChangeGate, ChangePermit, RequestService};
use vellum_fuse::visit_named_nodes;
use vellum_fuse::wire::{FuseAnswer, FuseOperation, FuseRequest, Opcode};

use super::table::StripeSet;
use super::{LeaseTable, MarkedLeases};
use crate::protocol::SessionId;
use crate::protocol::lease::ChangedPlaces;
use crate::server::recovery::ask_service;

/// The gate of a worktree, for the requests of one session or of the server's own mount.
pub struct LeaseGate {
    /// What clients were granted.
    pub table: Arc<LeaseTable>,
    /// Whose requests pass; None: those of the server's own mount. The names of a directory are not recalled from the session
    /// that changes it.
    pub session: Option<SessionId>,
}

impl ChangeGate for LeaseGate {
    fn begin_change(
        &self,
        service: &dyn RequestService,
        request: &FuseRequest<'_>,
        operation: &FuseOperation<'_>,
    ) -> Option<ChangePermit> {
        let mut changed = ChangedPlaces::of_operation(request.header.node, operation);
        if changed.is_empty() {
            return None;
        }
        // Names first, then what they stand for: a rename in between would have the wrong node recalled.
        let names = changed.names.iter().map(|changed| (changed.dir, changed.name));
        let mut change = self.table.take_names(StripeSet::of_names(names));
        // A client that comes now is granted nothing until the change is done.
        if !self.table.has_clients() {
            change.recall(MarkedLeases::All, None);
            return Some(Arc::new(change));
        }
        // The request names a name, but clients were granted attributes by node: an unlinked file has another link count.
        for name in std::mem::take(&mut changed.names) {
            if name.changes_node
                && let Some(node) = look_up_node(service, name.dir, name.name)
            {
                changed.add_named_node(node);
            }
        }
        change.recall(MarkedLeases::Some(changed.leases), self.session);
        Some(Arc::new(change))
    }

    fn may_wait(&self) -> bool {
        self.table.has_clients()
    }
}

/// The node that a name stands for.
fn look_up_node(service: &dyn RequestService, dir: u64, name: &[u8]) -> Option<u64> {
    let answer = ask_service(service, Opcode::Lookup, dir, &[name, b"\0"].concat());
    let FuseAnswer::Small(entry) = answer else { return None };
    let mut found = None;
    visit_named_nodes(Opcode::Lookup.number(), entry.answer_body(), |node| found = Some(node));
    // The lookup has counted the node for a kernel that knows nothing of it.
    found.inspect(|node| drop(ask_service(service, Opcode::Forget, *node, &1u64.to_le_bytes())))
}
