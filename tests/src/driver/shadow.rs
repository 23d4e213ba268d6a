//! A router's view of the prefix cache: what the events told, and nothing else. It must be exactly what the scheduler finds.

use std::collections::{BTreeMap, BTreeSet};

use cpp_sched::KvEvent;

use super::{Driver, Tracked, ensure};

/// What a block's prefix is: the chain at its end, and whether its digest came from a caller who keeps the tokens.
type Name = (bool, u64);

/// What was told to be found.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    by_digest: BTreeMap<[u8; 16], Name>,
    digests: BTreeMap<Name, [u8; 16]>,
    /// Found at some moment of the present call.
    ever: BTreeSet<Name>,
    /// Found at every moment of the present call.
    always: BTreeSet<Name>,
}

impl Shadow {
    fn begin(&mut self) {
        self.ever = self.digests.keys().copied().collect();
        self.always.clone_from(&self.ever);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

impl Driver {
    /// Takes what was told about the prefix cache and compares it with what the memory holds.
    pub(super) fn take_kv_events(&mut self) -> Result<(), String> {
        let events: Vec<KvEvent> = self.scheduler.kv_events().collect();
        ensure!(events.is_empty() || (self.config.kv_events && self.config.prefix_caching), "{events:?}, which nobody asked for");
        for event in events {
            match event {
                KvEvent::Stored { block, digest, parent } => {
                    let (position, chain) = self.memory.whole(block).ok_or_else(|| format!("{event:?}, but the block is not whole"))?;
                    let owner = self.publishers.iter().copied().find(|&who| self.requests[who].table.contains(&block));
                    let owner = owner.ok_or_else(|| format!("{event:?}, but no row of this call has the block"))?;
                    let block_size = self.config.block_size;
                    let request = &mut self.requests[owner];
                    ensure!(request.is_cacheable(&self.config), "{event:?} of {}, which takes no part", request.id);
                    let name = (request.shape.lengths, chain);
                    ensure!(chain == request.text.chain(position), "{event:?} of {}, which has another text there", request.id);
                    let before = position.checked_sub(block_size).map(|end| (request.shape.lengths, request.text.chain(end)));
                    let named = parent.map(|parent| self.shadow.by_digest.get(&parent).copied());
                    ensure!(named == before.map(Some), "{event:?}: its parent is {named:?}, must be {before:?}");
                    ensure!(self.shadow.by_digest.insert(digest, name).is_none(), "{event:?}, but that was found already");
                    ensure!(self.shadow.digests.insert(name, digest).is_none(), "{event:?}: two digests for one prefix");
                    self.shadow.ever.insert(name);
                }
                KvEvent::Removed { digest } => {
                    let name = self.shadow.by_digest.remove(&digest).ok_or_else(|| format!("{event:?}, but that was not found"))?;
                    self.shadow.digests.remove(&name);
                    self.shadow.always.remove(&name);
                }
                KvEvent::Cleared => {
                    self.shadow.by_digest.clear();
                    self.shadow.digests.clear();
                    self.shadow.always.clear();
                }
                _ => return Err(format!("{event:?} is not known here")),
            }
        }
        Ok(())
    }

    pub(super) fn end_kv_events(&mut self) {
        self.publishers.clear();
        self.shadow.begin();
    }

    /// A request that starts without blocks of its own finds exactly what was told to be there.
    pub(super) fn check_found(&mut self, who: usize, start: u32) -> Result<(), String> {
        let c = self.config;
        let request: &mut Tracked = &mut self.requests[who];
        ensure!(start == 0 || !request.shape.extras.skip_cache_read, "it reads {start} positions from the prefix cache, and must not");
        if !(c.kv_events && c.prefix_caching) {
            return Ok(());
        }
        let most = if !request.is_cacheable(&c) || request.shape.extras.skip_cache_read {
            0
        } else if request.shape.lengths {
            ((request.known() - 1) / c.block_size).min(request.hashed_len / c.block_size)
        } else {
            (request.known() - 1) / c.block_size
        };
        let lengths = request.shape.lengths;
        let names: Vec<Name> = (1..=most).map(|block| (lengths, request.text.chain(block * c.block_size - 1))).collect();
        let leading = |set: &BTreeSet<Name>| names.iter().take_while(|name| set.contains(name)).count();
        let (least, most) = (leading(&self.shadow.always), leading(&self.shadow.ever));
        let found = (start / c.block_size) as usize;
        ensure!((least..=most).contains(&found), "it finds {found} blocks, but {least} to {most} were told to be there");
        Ok(())
    }
}
