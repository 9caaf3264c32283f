//! Random operations on a worktree and on the model of one: results, error numbers and trees are the same.

use std::collections::BTreeMap;
use std::fmt::Debug;

use rustix::io::Errno;
use vellum_fs::{AttributeChanges, LiveFilesystem, RenameFlags, RequestCaller, TimeChange, XattrFlags};
use vellum_testkit::model::{
    ModelAttributes, ModelFileId, ModelFilesystem, ModelTime, ModelXattrFlags, NewModelFile, ROOT,
    RenderedEntry,
};
use vellum_types::{FileKind, Ino, UnixTime};

use crate::check::{check, check_usage};
use crate::stand::Stand;
use vellum_fs::StateReader;
use vellum_testkit::random::{TestRandom, choose_seed};

/// Operations of one run. `VELLUM_STEPS` sets another number.
const STEPS: usize = 6000;
/// Operations after which the trees are compared.
const COMPARE: usize = 250;
const NAMES: [&[u8]; 9] = [b"a", b"b", b"c", b"d", b"e", b".vellum", b"", b"..", b"x/y"];
const XATTRS: [&[u8]; 3] = [b"user.a", b"user.b", b"user.c"];

#[test]
fn operations_do_what_they_do_in_the_model() {
    let seed = choose_seed();
    let steps = std::env::var("VELLUM_STEPS").map_or(STEPS, |text| text.parse().unwrap());
    let mut pair = Pair::new(Stand::new(), seed);
    for step in 0..steps {
        pair.step();
        if step % COMPARE == 0 {
            pair.compare();
        }
    }
    pair.close_all();
    pair.compare();
    check(&pair.stand.fs);
    pair.stand = pair.stand.again();
    pair.compare();
    check(&pair.stand.fs);
}

/// The two, and which inode is which file.
pub struct Pair {
    pub stand: Stand,
    pub model: ModelFilesystem,
    pub inos: BTreeMap<ModelFileId, Ino>,
    pub open: Vec<(ModelFileId, Ino)>,
    pub random: TestRandom,
}

/// What both must agree on. `what` is for the message.
#[track_caller]
pub fn agree<T: Debug, U: Debug>(
    what: &dyn Debug,
    real: vellum_fs::Result<T>,
    model: Result<U, Errno>,
) -> Option<(T, U)> {
    match (real, model) {
        (Ok(real), Ok(model)) => Some((real, model)),
        (Err(real), Err(model)) if real.errno() == model => None,
        (real, model) => panic!("{what:?}: {real:?}, in the model {model:?}"),
    }
}

impl Pair {
    pub fn new(stand: Stand, seed: u64) -> Self {
        let mut model = ModelFilesystem::default();
        let root = stand.attr("");
        // The root belongs to whoever runs this.
        model
            .setattr(
                ROOT,
                &ModelAttributes { uid: Some(root.uid), gid: Some(root.gid), ..ModelAttributes::default() },
            )
            .unwrap();
        let inos = BTreeMap::from([(ROOT, Ino::ROOT)]);
        Self { stand, model, inos, open: Vec::new(), random: TestRandom::new(seed) }
    }

    pub fn step(&mut self) {
        match self.random.next_below(16) {
            0..=3 => self.make(),
            4 => self.link(),
            5 | 6 => self.remove(),
            7..=9 => self.rename(),
            10 => self.setattr(),
            11 => self.write(),
            12 => self.xattr(),
            13 => self.open(),
            14 => self.close(),
            _ => self.tmpfile(),
        }
    }

    /// Any file, now and then one that is gone or no directory; mostly what is asked for.
    pub fn file(&mut self, wanted: impl Fn(FileKind) -> bool) -> (ModelFileId, Ino) {
        let fits = |id: &ModelFileId| self.model.file(*id).is_ok_and(|file| wanted(file.kind));
        let all: Vec<_> = self.inos.iter().map(|(id, ino)| (*id, *ino)).collect();
        let fitting: Vec<_> = all.iter().filter(|(id, _)| fits(id)).copied().collect();
        if fitting.is_empty() || self.random.is_one_in(20) {
            self.random.pick_item(&all)
        } else {
            self.random.pick_item(&fitting)
        }
    }

    fn place(&mut self) -> ((ModelFileId, Ino), &'static [u8]) {
        let dir = self.file(|kind| kind == FileKind::Dir);
        // Odd names are rare.
        let name = if self.random.is_one_in(15) {
            self.random.pick_item(&NAMES)
        } else {
            self.random.pick_item(&NAMES[..5])
        };
        (dir, name)
    }

    fn new_file(&mut self) -> (NewModelFile, RequestCaller) {
        let mode = self.random.pick_item(&[0o644, 0o755, 0o4755, 0o2755, 0o1777, 0o600]);
        let uid = self.random.next_below(3) as u32;
        let gid = self.random.next_below(3) as u32;
        let umask = 0o022;
        let new = NewModelFile { mode, rdev: 0x105, target: b"target".to_vec(), uid, gid, umask };
        (new, RequestCaller { uid, gid, umask })
    }

    fn make(&mut self) {
        let ((dir, real_dir), name) = self.place();
        let (new, caller) = self.new_file();
        let kind = self.random.pick_item(&[
            FileKind::File,
            FileKind::File,
            FileKind::Dir,
            FileKind::Dir,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::CharDevice,
        ]);
        let fs = &self.stand.fs;
        let real = match kind {
            FileKind::File => fs.names().create(real_dir, name, new.mode, caller),
            FileKind::Dir => fs.names().mkdir(real_dir, name, new.mode, caller),
            FileKind::Symlink => fs.names().symlink(real_dir, name, &new.target, caller),
            kind => fs.names().mknod(real_dir, name, kind, new.mode, new.rdev, caller),
        };
        let model = self.model.create_entry((dir, name), kind, &new);
        if let Some((node, id)) = agree(&("make", kind, dir, name), real, model) {
            self.inos.insert(id, node.ino);
        }
    }

    fn tmpfile(&mut self) {
        let (dir, real_dir) = self.file(|kind| kind == FileKind::Dir);
        let (new, caller) = self.new_file();
        let real = self.stand.names().tmpfile(real_dir, new.mode, caller);
        if let Some((node, id)) = agree(&("tmpfile", dir), real, self.model.tmpfile(dir, &new)) {
            self.inos.insert(id, node.ino);
            self.open.push((id, self.stand.hold(node.ino).unwrap()));
        }
    }

    fn link(&mut self) {
        let (id, ino) = self.file(|kind| kind != FileKind::Dir);
        let ((dir, real_dir), name) = self.place();
        let real = self.stand.fs.names().link(ino, real_dir, name);
        agree(&("link", id, dir, name), real, self.model.link(id, (dir, name)));
    }

    fn remove(&mut self) {
        let ((dir, real_dir), name) = self.place();
        if self.random.is_one_in(2) {
            let real = self.stand.fs.names().unlink(real_dir, name, 0);
            agree(&("unlink", dir, name), real, self.model.unlink((dir, name)));
        } else {
            let real = self.stand.fs.names().rmdir(real_dir, name, 0);
            agree(&("rmdir", dir, name), real, self.model.rmdir((dir, name)));
        }
    }

    fn rename(&mut self) {
        let ((dir, real_dir), name) = self.place();
        let ((to, real_to), new_name) = self.place();
        let noreplace = self.random.is_one_in(6);
        let exchange = self.random.is_one_in(3);
        let flags = RenameFlags { noreplace, exchange, whiteout: None, uid: 0 };
        let real = self.stand.fs.names().rename(real_dir, name, real_to, new_name, flags);
        let model = self.model.rename((dir, name), (to, new_name), noreplace, exchange);
        agree(&("rename", dir, name, to, new_name, flags), real, model);
    }

    fn setattr(&mut self) {
        let (id, ino) = self.file(|_| true);
        let random = &mut self.random;
        let mut some = |value: u32| random.is_one_in(3).then_some(value);
        let mode = some(0o6751);
        let uid = some(7);
        let gid = some(8);
        let size = some(10_000).map(|size| size as usize);
        let mtime = some(0).is_some();
        let set = AttributeChanges {
            mode,
            uid,
            gid,
            size: size.map(|size| size as u64),
            mtime: mtime.then_some(TimeChange::Now),
            ..AttributeChanges::default()
        };
        let caller = RequestCaller { uid: 0, gid: 0, umask: 0 };
        let model = self.model.setattr(id, &ModelAttributes { mode, uid, gid, size, mtime });
        agree(&("setattr", id, set), self.stand.attributes().setattr(ino, &set, caller), model);
    }

    fn write(&mut self) {
        let (id, ino) = self.file(|kind| kind == FileKind::File);
        let offset = self.random.next_below(6000);
        let data = vec![self.random.next_number() as u8; 1 + self.random.next_below(3000) as usize];
        let real = self.stand.content().write(ino, offset, &data, false);
        agree(&("write", id, offset, data.len()), real, self.model.write(id, offset as usize, &data));
    }

    fn xattr(&mut self) {
        let (id, ino) = self.file(|kind| matches!(kind, FileKind::File | FileKind::Dir));
        let name = self.random.pick_item(&XATTRS);
        if self.random.is_one_in(3) {
            // Of an inode that is gone, the model knows nothing and says so.
            agree(
                &("removexattr", id),
                self.stand.attributes().removexattr(ino, name),
                self.model.removexattr(id, name),
            );
            return;
        }
        let value = vec![b'v'; self.random.next_below(20) as usize];
        let create = self.random.is_one_in(4);
        let replace = self.random.is_one_in(4);
        let real = self.stand.attributes().setxattr(
            ino,
            name,
            &value,
            XattrFlags { create, replace, drops_set_gid: false },
        );
        agree(
            &("setxattr", id),
            real,
            self.model.setxattr(id, name, &value, ModelXattrFlags { create, replace }),
        );
    }

    fn open(&mut self) {
        let (id, ino) = self.file(|kind| matches!(kind, FileKind::File | FileKind::Dir));
        let real = self.stand.hold(ino);
        if let Some((held, ())) = agree(&("open", id), real, self.model.open(id)) {
            self.open.push((id, held));
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let at = self.random.next_below(self.open.len() as u64) as usize;
            let (id, held) = self.open.swap_remove(at);
            agree(&("close", id), self.stand.release(held), self.model.close(id));
        }
    }

    pub fn close_all(&mut self) {
        while !self.open.is_empty() {
            self.close();
        }
    }

    pub fn compare(&mut self) {
        let mut expected = self.model.render_entries();
        let mut real = render(&self.stand.fs);
        expected.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        real.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for ((shown, ino), (expected, id)) in real.iter().zip(&expected) {
            assert!(shown == expected, "{}", difference(shown, expected));
            assert_eq!(self.inos.get(id), Some(ino), "{expected:?}");
        }
        assert_eq!(real.len(), expected.len());
        self.compare_nameless();
        assert_eq!(times_disagree(&self.stand.fs, &self.model, &self.inos), None);
        check_usage(&self.stand.fs);
        // Most of what is gone is forgotten; some of it is asked for again.
        let random = &mut self.random;
        let model = &self.model;
        self.inos.retain(|id, _| model.file(*id).is_ok() || random.is_one_in(10));
    }

    /// What is open has its attributes, also without a name.
    fn compare_nameless(&self) {
        for (id, file) in self.model.files() {
            let attr = self.stand.inode_attr(self.inos[&id]).unwrap();
            assert_eq!((attr.nlink as usize, attr.mode), (self.model.count_links(id), file.mode), "{id:?}");
            assert_eq!(attr.size as usize, file.size(), "{id:?}");
        }
    }
}

/// Changes of one inode within a tick, at most: each makes its time of change later by a nanosecond.
const STAMPS_MAX: i128 = 10_000;

fn nanoseconds(time: UnixTime) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

/// Times are ordered as their changes were, and those of one change are equal; else two that are not. Changes within one
/// tick of the kernel's clock have the same time, but for the nanoseconds by which an inode shows that it has changed.
pub fn times_disagree(
    fs: &LiveFilesystem,
    model: &ModelFilesystem,
    inos: &BTreeMap<ModelFileId, Ino>,
) -> Option<[(ModelTime, UnixTime); 2]> {
    let mut times: Vec<(ModelTime, UnixTime)> = Vec::new();
    for (id, file) in model.files() {
        let attr = fs.inode_attr(inos[&id]).unwrap();
        times.extend([(file.mtime, attr.mtime), (file.ctime, attr.ctime), (file.btime, attr.btime)]);
    }
    // The root was made, and given to its owner, before all else.
    times.retain(|(tick, _)| tick.0 > 1);
    times.sort_unstable();
    let is_right = |(earlier, first): (ModelTime, UnixTime), (later, second): (ModelTime, UnixTime)| {
        let ahead = nanoseconds(first) - nanoseconds(second);
        ahead <= STAMPS_MAX && (earlier != later || ahead >= -STAMPS_MAX)
    };
    times.array_windows().find(|[one, two]| !is_right(*one, *two)).copied()
}

/// What differs between what was found and what should be there, without the content.
pub fn difference(found: &RenderedEntry, expected: &RenderedEntry) -> String {
    let first = found.content.iter().zip(&expected.content).position(|(one, other)| one != other);
    let sizes = (found.content.len(), expected.content.len());
    let [found, expected] =
        [found, expected].map(|shown| RenderedEntry { content: Vec::new(), ..shown.clone() });
    format!("{found:?}, not {expected:?}; sizes {sizes:?}, bytes differ from {first:?} on")
}

/// All names of a worktree, each with its inode.
pub fn render(fs: &LiveFilesystem) -> Vec<(RenderedEntry, Ino)> {
    let mut shown = Vec::new();
    let mut waiting = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = waiting.pop() {
        let attr = fs.inode_attr(ino).unwrap();
        let mut content = attr.target.clone();
        match attr.kind {
            FileKind::Dir => waiting.extend(
                fs.list_entries(ino)
                    .unwrap()
                    .into_iter()
                    .map(|entry| ([&path[..], b"/", &entry.name].concat(), entry.ino)),
            ),
            FileKind::File => content = fs.read(ino, 0, 1 << 20).unwrap(),
            _ => {}
        }
        let xattr = |name: Vec<u8>| (name.clone(), fs.getxattr(ino, &name).unwrap().to_vec());
        let file = RenderedEntry {
            path,
            kind: attr.kind,
            mode: attr.mode,
            owner: (attr.uid, attr.gid),
            links: u64::from(attr.nlink),
            rdev: attr.rdev,
            content,
            xattrs: fs.listxattr(ino).unwrap().into_iter().map(xattr).collect(),
        };
        shown.push((file, ino));
    }
    shown
}
