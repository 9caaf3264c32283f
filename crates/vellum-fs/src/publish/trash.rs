//! Publishing the trash: its layers become a tree of its own, which the worktree's ref names.
//!
//! It is published before the worktree: so what was removed is in the store once more before the worktree's base, which
//! kept it until then, goes.

use vellum_host::clock::current_time;
use vellum_volume::refs::UnsnapshottedTree;

use super::{LAYERS_MANY, LivePublisher};
use crate::error::Result;
use crate::trash::published_trash;

impl LivePublisher {
    /// Publishes the trash, and makes the worktree's ref name it. Publishing must be paused.
    pub(super) fn publish_trash(&self) -> Result<()> {
        let (top, layers) = {
            let head = self.map.lock_head();
            (head.top_trash_layer(), head.trash_layers().len())
        };
        // If the store was away for long, the layers that there are come first.
        if let Some(top) = top.filter(|_| layers < LAYERS_MANY)
            && !self.map.is_layer_empty(top)?
        {
            self.map.change_head(|head, _| {
                head.seal_trash();
                Ok(())
            })?;
        }
        let sealed = self.map.lock_head().sealed_trash().filter(|sealed| !sealed.layers.is_empty());
        if let Some(sealed) = sealed {
            let (session, mut published) = self.store_durably(&sealed)?;
            // No snapshot counts from here.
            (published.counted.changed, published.counted.stored) = (0, 0);
            self.announce_trash(Some(UnsnapshottedTree {
                root: published.root,
                counted: published.counted,
            }))?;
            session.end_session()?;
            self.rebase_states(&sealed, &published, None)?;
        }
        // It may have been emptied or switched off.
        let stands = published_trash(&self.map.lock_head(), self.volume.empty_root());
        self.announce_trash(stands)
    }

    /// Makes the worktree's ref name a tree of the trash, if it does not.
    fn announce_trash(&self, tree: Option<UnsnapshottedTree>) -> Result<()> {
        let mut announced = self.announced_trash.lock();
        if *announced != tree {
            self.lease.update_ref(|head| head.trash.tree = tree)?;
            *announced = tree;
        }
        Ok(())
    }

    /// Removes what has been in the trash for long enough.
    pub(super) fn expire_trash(&self) -> Result<()> {
        match self.trash.expire(current_time())? {
            0 => {}
            count => tracing::info!(count, "entries of the trash expired"),
        }
        Ok(())
    }
}
