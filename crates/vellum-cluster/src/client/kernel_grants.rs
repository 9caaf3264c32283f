//! What the kernel of the mount may have cached of what the server has granted, and for how long.
//!
//! **Names.** A kernel drops all names of a mount at once, and with them what lookups under way will find, without taking a
//! lock. To drop the names of one directory it would lock that directory, which a program may have locked that waits for the
//! server, which waits for the recall. So all names go with those of any directory. The kernel does not ask for them again
//! as long as nobody else changes a directory that it looks at: it follows its own changes, and the server recalls no names
//! from the client that changes them. If a directory entry moves to another directory, it would take along its time there,
//! for which nothing was granted; so a client drops all names before it moves one.
//!
//! A kernel that comes upon a name which it has dropped takes a directory out of its tree and asks for it anew. For that
//! moment a program that works in this directory is told that its directory is gone (`getcwd`). So names are not cached again
//! at once: the pause is longer each time, as long as others keep changing what is looked at here.
//!
//! **Attributes.** If a node's attributes are dropped, an answer under way to a request for them is dropped, too. But a
//! lookup under way may make the kernel know a node that it does not know yet, with attributes from before. So only answers to
//! requests for attributes let the kernel cache them: it knows the node as long as it waits for such an answer.
//!
//! Invariants: whatever the kernel has cached longer than for one request is recorded here before it gets the answer; no
//! answer may be cached for longer than the client itself may use it.

use std::collections::HashSet;
use std::time::Duration;

use rustix::io::Errno;
use vellum_fuse::wire::patching::{
    clear_listed_nodes, encode_absent_name, set_attribute_timeout, set_entry_timeout,
};
use vellum_fuse::wire::{FuseAnswer, Opcode};

use crate::protocol::lease::{AnswerKey, Lease};

/// Something that the kernel has to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelNotice {
    /// All names.
    Names,
    /// The attributes of a node.
    Attributes(u64),
}

/// The longest pause in which no names are cached.
const NAMES_PAUSE_MAX: Duration = Duration::from_secs(64);
/// After how many pauses without a drop the next pause is the shortest one again.
const CALM_PAUSES: u32 = 4;

/// How long what was granted may be used.
#[derive(Debug, Clone, Copy)]
pub struct GrantedTerm {
    /// By the clock that counts while the machine sleeps.
    pub now: Duration,
    /// From then on.
    pub rest: Duration,
}

/// When names may be cached again after they were dropped.
#[derive(Debug)]
struct NamesPause {
    shortest: Duration,
    last: Duration,
    until: Duration,
}

impl NamesPause {
    fn begin(&mut self, now: Duration) {
        let is_calm = now >= self.until + CALM_PAUSES * self.last;
        self.last = if is_calm { self.shortest } else { (2 * self.last).min(NAMES_PAUSE_MAX) };
        self.until = now + self.last;
    }
}

/// What the kernel may have cached.
#[derive(Debug)]
pub struct KernelGrants {
    /// Whether the kernel can drop all names at once; otherwise it caches none.
    caches_names: bool,
    pause: NamesPause,
    /// Directories of which it may have cached names.
    dirs: HashSet<u64>,
    /// Nodes of which it may have cached attributes.
    nodes: HashSet<u64>,
}

impl KernelGrants {
    /// Of a kernel that has cached nothing. `names_pause`: the shortest pause after names were dropped.
    pub fn new(caches_names: bool, names_pause: Duration) -> Self {
        let pause = NamesPause { shortest: names_pause, last: names_pause, until: Duration::ZERO };
        Self { caches_names, pause, dirs: HashSet::new(), nodes: HashSet::new() }
    }

    /// Makes an answer that the client keeps one that the kernel may cache for this term, and records that.
    pub fn grant(&mut self, key: &AnswerKey, answer: &mut KernelAnswer, term: GrantedTerm) {
        let is_absent = answer.errno == Errno::NOENT.raw_os_error();
        let may_cache_name = self.caches_names && term.now >= self.pause.until;
        match Opcode::from_number(key.opcode()) {
            Some(Opcode::Lookup) if may_cache_name && answer.errno == 0 => {
                set_entry_timeout(&mut answer.body, term.rest);
                self.dirs.insert(key.node());
            }
            Some(Opcode::Lookup) if may_cache_name && is_absent => {
                *answer = KernelAnswer { errno: 0, body: encode_absent_name(term.rest) };
                self.dirs.insert(key.node());
            }
            Some(Opcode::Getattr | Opcode::Statx) if answer.errno == 0 => {
                set_attribute_timeout(&mut answer.body, term.rest);
                self.nodes.insert(key.node());
            }
            Some(_) | None => {}
        }
    }

    /// What the kernel has to drop, and is taken to have dropped, if a lease ends.
    pub fn end_lease(&mut self, lease: Lease, now: Duration) -> Option<KernelNotice> {
        match lease {
            Lease::Names(dir) if self.dirs.contains(&dir) => {
                self.pause.begin(now);
                self.dirs.clear();
                Some(KernelNotice::Names)
            }
            Lease::Node(node) if self.nodes.remove(&node) => Some(KernelNotice::Attributes(node)),
            Lease::Names(_) | Lease::Node(_) => None,
        }
    }

    /// The same, if all leases end.
    pub fn end_all(&mut self) -> Vec<KernelNotice> {
        let names = (!self.dirs.is_empty()).then_some(KernelNotice::Names);
        self.dirs.clear();
        // Names first: they are dropped at once.
        names.into_iter().chain(self.nodes.drain().map(KernelNotice::Attributes)).collect()
    }

    /// From now on the kernel caches no names; those that it has are left to expire. Gives whether it cached any before.
    pub fn end_names(&mut self) -> bool {
        self.dirs.clear();
        std::mem::take(&mut self.caches_names)
    }

    /// Whether the kernel may have cached names of a directory.
    pub fn has_names(&self, dir: u64) -> bool {
        self.dirs.contains(&dir)
    }

    /// The kernel knows a node no more. Gives whether it had cached names of it.
    pub fn forget_node(&mut self, node: u64) -> bool {
        self.nodes.remove(&node);
        self.dirs.remove(&node)
    }
}

/// An answer on its way to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelAnswer {
    /// The number of the error; 0: success.
    pub errno: i32,
    /// What it succeeded with.
    pub body: Vec<u8>,
}

impl KernelAnswer {
    /// Leaves out of a listing, which the kernel has had before, what its names stand for. Otherwise the kernel would take
    /// over that these may not be cached, since what it does not know yet may not be.
    pub fn leave_out_nodes(&mut self, opcode: u32) {
        if self.errno == 0 && opcode == Opcode::Readdirplus.number() {
            clear_listed_nodes(&mut self.body);
        }
    }
}

impl From<KernelAnswer> for FuseAnswer {
    fn from(answer: KernelAnswer) -> Self {
        match answer.errno {
            0 if answer.body.is_empty() => Self::Done,
            0 => Self::Bytes(answer.body),
            errno => Self::Failed(Errno::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use vellum_fuse::wire::FuseOperation;

    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const TERM: GrantedTerm = GrantedTerm { now: NOW, rest: Duration::from_secs(4) };
    const DIR: u64 = 7;

    fn key(opcode: Opcode, operation: &FuseOperation<'_>) -> AnswerKey {
        AnswerKey::of_request(opcode.number(), DIR, operation).unwrap()
    }

    fn lookup_key() -> AnswerKey {
        key(Opcode::Lookup, &FuseOperation::Lookup { name: b"a" })
    }

    fn grant(grants: &mut KernelGrants, key: &AnswerKey, errno: i32, len: usize) -> KernelAnswer {
        let mut answer = KernelAnswer { errno, body: vec![0; len] };
        grants.grant(key, &mut answer, TERM);
        answer
    }

    #[test]
    fn names_go_all_at_once_and_attributes_one_by_one() {
        let mut grants = KernelGrants::new(true, Duration::ZERO);
        grant(&mut grants, &lookup_key(), 0, 128);
        assert_eq!(grants.end_lease(Lease::Names(8), NOW), None);
        assert_eq!(grants.end_lease(Lease::Node(DIR), NOW), None);
        grant(&mut grants, &key(Opcode::Getattr, &FuseOperation::Getattr), 0, 104);
        assert_eq!(grants.end_lease(Lease::Names(DIR), NOW), Some(KernelNotice::Names));
        assert_eq!(grants.end_lease(Lease::Names(DIR), NOW), None);
        assert_eq!(grants.end_lease(Lease::Node(DIR), NOW), Some(KernelNotice::Attributes(DIR)));
        grant(&mut grants, &lookup_key(), 0, 128);
        grant(&mut grants, &key(Opcode::Statx, &FuseOperation::Statx), 0, 288);
        assert_eq!(grants.end_all(), [KernelNotice::Names, KernelNotice::Attributes(DIR)]);
        assert!(grants.end_all().is_empty());
    }

    #[test]
    fn a_lookup_lets_the_kernel_cache_the_name_alone_also_of_what_is_not_there() {
        let mut grants = KernelGrants::new(true, Duration::ZERO);
        let found = grant(&mut grants, &lookup_key(), 0, 128).body;
        assert_eq!((&found[16..24], &found[24..32]), (&4u64.to_ne_bytes()[..], &[0; 8][..]));
        let absent = grant(&mut grants, &lookup_key(), Errno::NOENT.raw_os_error(), 0);
        assert_eq!((absent.errno, &absent.body[..8]), (0, &[0; 8][..]));
        assert_eq!(absent.body[16..24], 4u64.to_ne_bytes());
    }

    #[test]
    fn a_kernel_that_cannot_drop_all_names_caches_none() {
        let mut grants = KernelGrants::new(false, Duration::ZERO);
        let found = grant(&mut grants, &lookup_key(), 0, 128);
        assert_eq!(found.body, [0; 128]);
        let absent = grant(&mut grants, &lookup_key(), Errno::NOENT.raw_os_error(), 0);
        assert_eq!(absent.errno, Errno::NOENT.raw_os_error());
        assert_eq!(grants.end_lease(Lease::Names(DIR), NOW), None);
    }

    #[test]
    fn the_pause_in_which_no_names_are_cached_is_longer_each_time_until_it_is_calm() {
        let pause = Duration::from_secs(1);
        let mut grants = KernelGrants::new(true, pause);
        let mut now = NOW;
        // How long names are not cached after each drop, with one second in between.
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                let mut answer = KernelAnswer { errno: 0, body: vec![0; 128] };
                grants.grant(&lookup_key(), &mut answer, GrantedTerm { now, ..TERM });
                now += pause;
                assert_eq!(grants.end_lease(Lease::Names(DIR), now), Some(KernelNotice::Names));
                let length = grants.pause.until - now;
                now = grants.pause.until;
                length.as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        let before = GrantedTerm { now: now - pause, ..TERM };
        let mut answer = KernelAnswer { errno: 0, body: vec![0; 128] };
        grants.grant(&lookup_key(), &mut answer, before);
        assert_eq!((answer.body, grants.has_names(DIR)), (vec![0; 128], false));
        now += CALM_PAUSES * NAMES_PAUSE_MAX;
        grants.dirs.insert(DIR);
        grants.end_lease(Lease::Names(DIR), now);
        assert_eq!(grants.pause.until, now + pause);
    }
}
