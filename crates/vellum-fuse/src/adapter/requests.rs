//! The requests: each is served and answered.
//!
//! Not here: `open`, `opendir`, `flush` (opening and closing need nothing of us: the kernel keeps and writes back its
//! pages by itself, and remembers that we do not want to know) and with them `create` (it makes a node, and opens that),
//! `access` (the kernel decides), locks (one kernel serves all who lock).

use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::opcode;
use vellum_types::Ino;

use super::modify::{At, NewNode, Piece};
use super::reading::Stretch;
use super::seeking::Stale;
use super::{Adapter, Call, LONG, Main, Owner, caller, chain};
use crate::connection::{Later, Service};
use crate::node::Place;
use crate::tally::Op;
use crate::wire::{Answer, Entry, Operation, Request, Small, WriteFlags};

impl Service for Adapter {
    fn answer(&self, request: &Request<'_>, operation: Operation<'_>, later: Later<'_>) -> Answer {
        use Operation as Do;
        let call = Call { head: &request.header, what: &operation };
        let node = request.header.node;
        match operation {
            Do::Lookup { name } => self.answer_lookup(call, name),
            Do::Getattr => {
                Answer::of(self.serve(Op::Getattr, call, || self.getattr(node)), Small::attributes)
            }
            Do::Statx => Answer::of(self.serve(Op::Statx, call, || self.getattr(node)), Small::statx),
            Do::Readlink => Answer::of_bytes(self.serve(Op::Readlink, call, || self.readlink(node))),
            Do::Read { offset, len, direct } => self.answer_read(call, (offset, len), direct),
            Do::Lseek { offset, whence } => self.answer_seek(call, (offset, whence), later),
            Do::Getxattr { name, room } => {
                xattr(room, self.serve(Op::Getxattr, call, || self.getxattr(node, name)))
            }
            Do::Listxattr { room } => {
                let names = || self.listxattr(node).map(Arc::from);
                xattr(room, self.serve(Op::Listxattr, call, names))
            }
            Do::Statfs => Answer::of(self.serve(Op::Statfs, call, || self.statfs()), Small::statfs),
            Do::Readdir { offset, room } => self.answer_readdir(call, Stretch { offset, room }, later),
            Do::Readdirplus { offset, room } => {
                self.answer_readdirplus(call, Stretch { offset, room }, later)
            }
            Do::Forget { times } => {
                self.forget_node(node, times);
                Answer::None
            }
            Do::BatchForget(forgets) => {
                forgets.nodes().for_each(|(node, times)| self.forget_node(node, times));
                Answer::None
            }
            // What was made without a name is open, and so it is closed. The kernel says by itself when it has
            // forgotten it.
            Do::Release | Do::Destroy => Answer::Done,
            Do::Unknown => Answer::Failed(Errno::NOSYS),
            // There was one already.
            Do::Init(_) => Answer::Failed(Errno::IO),
            Do::Ioctl { command, told, room } => self.answer_ioctl(call, (command, room), told),
            _ => self.answer_change(call, later),
        }
    }

    fn is_at_hand(&self, node: u64, offset: u64, len: u32) -> bool {
        match self.owner(node) {
            Ok(Owner::Live(fs, ino)) => fs.is_at_hand(ino, offset, len as usize),
            _ => false,
        }
    }
}

impl Adapter {
    /// Requests that change something, or make it durable.
    fn answer_change(&self, call: Call<'_>, later: Later<'_>) -> Answer {
        use Operation as Do;
        let (head, node) = (call.head, call.head.node);
        match *call.what {
            Do::Setattr(asked) => {
                let set = || self.setattr(node, &asked, caller(head, 0));
                Answer::of(self.serve(Op::Setattr, call, set), Small::attributes)
            }
            Do::Write { offset, flags, data } => {
                let at = Piece { node, offset };
                let stale = self.stale_after_write(at, data.len(), flags);
                let done = self.serve(Op::Write, call, || self.write(at, data, flags));
                self.answer_fresh(Answer::of(done, |&len| Small::count(len)), stale, later)
            }
            Do::Fsync { data_only } => {
                Answer::of_deed(self.serve(Op::Fsync, call, || self.fsync(node, data_only)))
            }
            Do::Fsyncdir { data_only } => {
                Answer::of_deed(self.serve(Op::Fsyncdir, call, || self.fsync(node, data_only)))
            }
            Do::Setxattr { name, value, flags, drops_set_gid } => {
                let set = || self.setxattr(node, (name, value), flags, drops_set_gid);
                Answer::of_deed(self.serve(Op::Setxattr, call, set))
            }
            Do::Removexattr { name } => {
                Answer::of_deed(self.serve(Op::Removexattr, call, || self.removexattr(node, name)))
            }
            Do::Fallocate { offset, len, mode } => {
                // As for writing; but of who asks Linux says no more than who it is.
                let stale = self.has_set_ids(node).then_some(Stale::Attributes(node));
                let allocate = || self.fallocate(Piece { node, offset }, len, (mode, caller(head, 0)));
                let done = Answer::of_deed(self.serve(Op::Fallocate, call, allocate));
                self.answer_fresh(done, stale, later)
            }
            Do::CopyFileRange { offset, to, to_offset, len, wide } => {
                let (from, to) = (Piece { node, offset }, Piece { node: to, offset: to_offset });
                let len = if wide { len } else { len.min(NARROW_COPY_MAX) };
                let copied = self.serve(Op::CopyFileRange, call, || self.copy_range(from, to, len));
                Answer::of(copied, |&copied| match u32::try_from(copied) {
                    Ok(copied) if !wide => Small::count(copied),
                    _ => Small::offset(copied),
                })
            }
            _ => self.answer_names(call),
        }
    }

    /// What the kernel will have to forget when a write is done.
    fn stale_after_write(&self, at: Piece, len: usize, flags: WriteFlags) -> Option<Stale> {
        let Piece { node, offset } = at;
        // Of an asynchronous write that passes its pages by the kernel does not forget what was read meanwhile.
        if flags.is_direct() && !flags.is_write_back() && self.paged.has(node) {
            return Some(Stale::Pages(node, offset..offset.saturating_add(len as u64)));
        }
        // It does not look at the mode again by itself: a program would go on to run as its owner.
        (flags.kills_suid() && self.has_set_ids(node)).then_some(Stale::Attributes(node))
    }

    /// Answers when the kernel has forgotten what is stale.
    fn answer_fresh(&self, answer: Answer, stale: Option<Stale>, later: Later<'_>) -> Answer {
        let Some(stale) = stale.filter(|_| !matches!(answer, Answer::Failed(_))) else { return answer };
        let unanswered = later.take();
        self.seeking.forget(stale, move || unanswered.answer(answer));
        Answer::Later
    }

    /// Operations of a file's own kind: none but to ask for its flags, of which there are none, and to set none.
    fn answer_ioctl(&self, call: Call<'_>, (command, room): (u32, u32), told: &[u8]) -> Answer {
        let is_set =
            |words: usize| told.get(..4 * words).is_some_and(|told| told.iter().any(|byte| *byte != 0));
        let words = match command {
            GET_FLAGS => 1,
            GET_XFLAGS => XFLAGS_WORDS,
            SET_FLAGS | SET_XFLAGS if is_set(1) => return Answer::Failed(Errno::OPNOTSUPP),
            SET_FLAGS | SET_XFLAGS => 0,
            _ => return Answer::Failed(Errno::NOTTY),
        };
        if 4 * words > room as usize {
            return Answer::Failed(Errno::INVAL);
        }
        // Whether it is there.
        match self.getattr(call.head.node) {
            Ok(_) => Answer::Small(Small::ioctl(words)),
            Err(error) => Answer::Failed(error.errno()),
        }
    }

    /// Requests that make names, or take them away.
    fn answer_names(&self, call: Call<'_>) -> Answer {
        use Operation as Do;
        let (head, dir) = (call.head, call.head.node);
        let at = |name| At { dir, name };
        let made = |op, make: &dyn Fn() -> vellum_fs::Result<Entry>| {
            Answer::of(self.serve(op, call, make), |entry| {
                Small::entry(&Entry { patience: entry.patience.min(self.patience(dir)), ..*entry })
            })
        };
        match *call.what {
            Do::Mknod { name, mode, device, umask } => {
                let new = NewNode { mode, device };
                made(Op::Mknod, &|| self.mknod(at(name), new, caller(head, umask)))
            }
            Do::Mkdir { name, mode, umask } => {
                made(Op::Mkdir, &|| self.mkdir(at(name), mode, caller(head, umask)))
            }
            Do::Symlink { name, target } => {
                made(Op::Symlink, &|| self.symlink(at(name), target, caller(head, 0)))
            }
            Do::Link { node, name } => made(Op::Link, &|| self.link(node, at(name))),
            Do::Tmpfile { mode, umask } => {
                let make = || self.tmpfile(dir, mode, caller(head, umask));
                Answer::of(self.serve(Op::Tmpfile, call, make), Small::made_open)
            }
            Do::Unlink { name } => Answer::of_deed(self.serve(Op::Unlink, call, || self.unlink(at(name)))),
            Do::Rmdir { name } => Answer::of_deed(self.serve(Op::Rmdir, call, || self.rmdir(at(name)))),
            Do::Rename { name, to_dir, to_name, flags } => {
                let to = At { dir: to_dir, name: to_name };
                Answer::of_deed(
                    self.serve(Op::Rename, call, || self.rename(at(name), to, flags, caller(head, 0))),
                )
            }
            // All others were answered.
            _ => Answer::Failed(Errno::NOSYS),
        }
    }

    fn answer_lookup(&self, call: Call<'_>, name: &[u8]) -> Answer {
        let head = call.head;
        let found = self.serve(Op::Lookup, call, || self.lookup(head.node, name));
        // That a name does not exist may be remembered, too.
        let found = match found {
            Err(Errno::NOENT) => self.absent(head.node, name).ok_or(Errno::NOENT),
            found => found,
        };
        Answer::of(found, Small::entry)
    }

    /// The kernel has forgotten so many answers that named a node.
    pub(super) fn forget_node(&self, node: u64, times: u64) {
        self.removed.forget(node);
        self.paged.forget(node);
        match (&self.main, Place::of(node)) {
            (Main::Live(fs), Place::Main(epoch, ino)) => {
                match (fs.let_go_later(epoch, ino, times), &self.orphans) {
                    (Ok(true), Some(orphans)) => orphans.ask(),
                    (Ok(_), _) => {}
                    // It goes when the worktree is mounted the next time.
                    (Err(error), _) => {
                        (self.report)(&format!("a file without a name cannot be removed: {}", chain(&error)));
                    }
                }
            }
            (_, Place::Virtual(number)) => self.virt.forget(number),
            _ => {}
        }
    }

    /// What answers that a name does not exist, for the kernel to remember; none where it may soon exist without its
    /// knowing.
    fn absent(&self, dir: u64, name: &[u8]) -> Option<Entry> {
        if dir == Ino::ROOT.0 && !self.missed.note(name) {
            return None;
        }
        let nothing = vellum_types::Attr::new(vellum_types::FileKind::File, 0);
        let attr = crate::attr::attributes(0, &nothing, 0);
        match self.owner(dir) {
            Ok(Owner::Live(..)) if self.is_of_past(dir) => None,
            Ok(Owner::Live(..) | Owner::Frozen(..)) => Some(Entry { attr, generation: 0, patience: LONG }),
            Ok(Owner::Past(..) | Owner::Virtual(_) | Owner::Removed(_)) | Err(_) => None,
        }
    }
}

/// Flags of a file, in one word (`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`).
const GET_FLAGS: u32 = opcode::read::<usize>(b'f', 1);
const SET_FLAGS: u32 = opcode::write::<usize>(b'f', 2);

/// Flags of a file with what else XFS keeps (`FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`): the first word are the flags.
const XFLAGS_WORDS: usize = 7;
const GET_XFLAGS: u32 = opcode::read::<[u32; XFLAGS_WORDS]>(b'X', 31);
const SET_XFLAGS: u32 = opcode::write::<[u32; XFLAGS_WORDS]>(b'X', 32);

/// Bytes copied at most where the answer counts them in 32 bits; whoever wants more asks again.
const NARROW_COPY_MAX: u64 = 1 << 31;

/// The value, or with no room for it (`room` 0) its length.
fn xattr(room: u32, done: Result<Arc<[u8]>, Errno>) -> Answer {
    let value = match done {
        Ok(value) => value,
        Err(error) => return Answer::Failed(error),
    };
    match u32::try_from(value.len()) {
        Ok(len) if room == 0 => Answer::Small(Small::count(len)),
        Ok(len) if len <= room => Answer::Shared(value),
        Ok(_) => Answer::Failed(Errno::RANGE),
        Err(_) => Answer::Failed(Errno::TOOBIG),
    }
}
