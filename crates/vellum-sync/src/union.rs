//! Several sources as one: what any of them has is there.
//!
//! Invariant: of entries with one path a directory goes before anything else, and an earlier source before a later one;
//! directories hold what all of them hold. Content comes from the source that the entry is of. Deliberately absent: what
//! is in each of the sources.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use vellum_volume::Meter;

use crate::error::{Result, SyncError};
use crate::listing::{Block, Digest, Entry, EntryId, Flags, Fresh, Listing, Unlisted};
use crate::scan::Judge;
use crate::source::{Content, End, Side, Source, Wanted, Wish};

/// One of the sources.
pub struct Part {
    /// What it is.
    pub source: Box<dyn Source>,
    /// What is left out of it.
    pub rules: Arc<dyn Judge>,
    /// The name under which all of it stands; None for what is in it.
    pub under: Option<Vec<u8>>,
    /// A directory (device and inode) that is not entered.
    pub avoid: Option<(u64, u64)>,
}

/// All of them.
pub struct Union {
    parts: Vec<Part>,
    listed: Mutex<Arc<Listed>>,
}

/// What was listed last.
#[derive(Default)]
struct Listed {
    parts: Vec<Listing>,
    /// Where each entry of the union is from: a part, and its entry there.
    origins: Vec<Origin>,
}

type Origin = (usize, EntryId);

impl Union {
    /// The sources in their order.
    #[must_use]
    pub fn new(parts: Vec<Part>) -> Self {
        Self { parts, listed: Mutex::default() }
    }

    fn listed(&self) -> Arc<Listed> {
        Arc::clone(&self.listed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Listed {
    fn origin(&self, id: EntryId) -> Option<(usize, Entry<'_>)> {
        let (part, id) = *self.origins.get(id.index())?;
        Some((part, self.parts.get(part)?.get(id)?))
    }
}

impl End for Union {
    fn list(&self, wish: &Wish, meter: &Meter) -> Result<Listing> {
        let list = |part: &Part| {
            part.source.list(
                &Wish {
                    side: Side::Source,
                    options: Arc::clone(&wish.options),
                    rules: Arc::clone(&part.rules),
                    top: part.under.clone().unwrap_or_default(),
                    avoid: part.avoid,
                    owners: wish.owners,
                },
                meter,
            )
        };
        let listings = self.parts.iter().map(list).collect::<Result<Vec<_>>>()?;
        let merge = Merge { parts: &self.parts, listings: &listings, groups: HashMap::new() };
        let (listing, origins) = merge.run()?;
        let listed = Arc::new(Listed { parts: listings, origins });
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = listed;
        Ok(listing)
    }

    fn digest(&self, _: &Listing, files: &[EntryId], meter: &Meter) -> Result<Vec<Option<Digest>>> {
        let listed = self.listed();
        let mut found = vec![None; files.len()];
        for (number, (part, listing)) in self.parts.iter().zip(&listed.parts).enumerate() {
            let own = |(place, id): (usize, &EntryId)| {
                let (of, entry) = listed.origin(*id)?;
                (of == number).then_some((place, entry.id()))
            };
            let (places, ids): (Vec<usize>, Vec<EntryId>) = files.iter().enumerate().filter_map(own).unzip();
            let digests = part.source.digest(listing, &ids, meter)?;
            for (place, digest) in places.into_iter().zip(digests) {
                if let Some(slot) = found.get_mut(place) {
                    *slot = digest;
                }
            }
        }
        Ok(found)
    }
}

impl Source for Union {
    fn expect(&self, _: &Listing, files: &[Wanted]) {
        let listed = self.listed();
        for (number, (part, listing)) in self.parts.iter().zip(&listed.parts).enumerate() {
            let own = |wanted: &Wanted| {
                let (of, entry) = listed.origin(wanted.id)?;
                (of == number).then_some(Wanted { id: entry.id(), ..*wanted })
            };
            part.source.expect(listing, &files.iter().filter_map(own).collect::<Vec<_>>());
        }
    }

    fn open(&self, file: Entry<'_>, old: Option<&File>) -> Result<Content> {
        let listed = self.listed();
        let (number, entry) = listed.origin(file.id()).ok_or(SyncError::Vanished)?;
        self.parts.get(number).ok_or(SyncError::Vanished)?.source.open(entry, old)
    }
}

/// The listings being made one.
struct Merge<'a> {
    parts: &'a [Part],
    listings: &'a [Listing],
    /// Files with several names: their numbers in the union, by those in their listings.
    groups: HashMap<(usize, u32), u32>,
}

/// Directories of the parts that are one in the union, and its number there.
struct Task {
    id: EntryId,
    from: Vec<Origin>,
}

/// Entries of one name.
type Named<'a> = (Vec<u8>, usize, Entry<'a>);

impl<'a> Merge<'a> {
    fn run(mut self) -> Result<(Listing, Vec<Origin>)> {
        let content = |(_, part): &(usize, &Part)| part.under.is_none();
        let of_root: Vec<Origin> =
            self.parts.iter().enumerate().filter(content).map(|(part, _)| (part, EntryId::ROOT)).collect();
        let first = of_root.iter().find_map(|origin| {
            let root = self.entry(*origin)?;
            (!root.flags().has(Flags::IMPLIED)).then_some((*origin, root))
        });
        let mut listing = match first {
            Some((_, root)) => Listing::new(&Fresh::of(&root), root.detail().cloned()),
            None => Listing::new(&Fresh { flags: Flags::IMPLIED, ..Fresh::dir() }, None),
        };
        let mut origins = vec![first.map_or((0, EntryId::ROOT), |(origin, _)| origin)];
        let mut tasks = VecDeque::from([Task { id: EntryId::ROOT, from: of_root }]);
        while let Some(task) = tasks.pop_front() {
            self.directory(&task, &mut listing, &mut origins, &mut tasks)?;
        }
        self.tell(&mut listing);
        Ok((listing, origins))
    }

    fn entry(&self, (part, id): Origin) -> Option<Entry<'a>> {
        self.listings.get(part)?.get(id)
    }

    /// What is in a directory, by name, in the order of the parts.
    fn children(&self, task: &Task) -> Vec<Named<'a>> {
        let mut all: Vec<Named<'a>> = Vec::new();
        for origin in &task.from {
            let children = self.entry(*origin).into_iter().flat_map(|dir| dir.children());
            all.extend(children.map(|child| (child.name().to_vec(), origin.0, child)));
        }
        if task.id == EntryId::ROOT {
            for (number, (part, listing)) in self.parts.iter().zip(self.listings).enumerate() {
                all.extend(part.under.clone().map(|name| (name, number, listing.root())));
            }
        }
        all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        all
    }

    fn directory(
        &mut self,
        task: &Task,
        listing: &mut Listing,
        origins: &mut Vec<Origin>,
        tasks: &mut VecDeque<Task>,
    ) -> Result<()> {
        let kept = [Flags::KEEPS, Flags::UNREAD, Flags::MOUNT];
        let flags = task.from.iter().filter_map(|origin| self.entry(*origin)).map(|dir| dir.flags());
        let marks = flags.fold(Flags::default(), |marks, flags| {
            kept.iter().fold(marks, |marks, mark| marks.with_if(*mark, flags.has(*mark)))
        });
        listing.mark(task.id, marks);
        let children = self.children(task);
        let (mut block, mut dirs) = (Block::with_capacity(children.len()), Vec::new());
        for same in children.chunk_by(|a, b| a.0 == b.0) {
            // One that was named goes before one that is on the way to something else.
            let is_named = |(.., entry): &&Named<'_>| entry.is_dir() && !entry.flags().has(Flags::IMPLIED);
            let dir = same.iter().find(is_named).or_else(|| same.iter().find(|(.., entry)| entry.is_dir()));
            let Some((name, part, entry)) = dir.or(same.first()) else {
                continue;
            };
            if entry.is_dir() {
                let all = same.iter().filter(|(.., entry)| entry.is_dir());
                let from: Vec<Origin> = all.map(|(_, part, entry)| (*part, entry.id())).collect();
                dirs.push((block.len() as u32, from));
            }
            let detail = entry.detail().cloned().map(|mut detail| {
                detail.group = self.group(*part, detail.group);
                detail
            });
            block.push(name, &Fresh::of(entry), detail)?;
            origins.push((*part, entry.id()));
        }
        let first = listing.attach(task.id, &mut block)?;
        tasks.extend(dirs.into_iter().map(|(place, from)| Task { id: first.plus(place), from }));
        Ok(())
    }

    fn group(&mut self, part: usize, group: u32) -> u32 {
        if group == 0 {
            return 0;
        }
        let next = self.groups.len() as u32 + 1;
        *self.groups.entry((part, group)).or_insert(next)
    }

    /// What could not be listed, and what owners are called.
    fn tell(&self, union: &mut Listing) {
        for (part, listing) in self.parts.iter().zip(self.listings) {
            for unlisted in &listing.unlisted {
                let names = [part.under.as_deref().unwrap_or_default(), &unlisted.path];
                let names: Vec<&[u8]> = names.into_iter().filter(|name| !name.is_empty()).collect();
                union.unlisted.push(Unlisted { path: names.join(&b'/'), ..unlisted.clone() });
            }
            for (id, name) in &listing.owners.users {
                union.owners.users.entry(*id).or_insert_with(|| name.clone());
            }
            for (id, name) in &listing.owners.groups {
                union.owners.groups.entry(*id).or_insert_with(|| name.clone());
            }
        }
    }
}
