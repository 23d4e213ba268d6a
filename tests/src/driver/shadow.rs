//! A router's view of the prefix cache: what the events told, and nothing else. It must be exactly what the scheduler finds.

use std::collections::{BTreeMap, BTreeSet};

use cpp_sched::{BlockId, KvEvent, KvGroup};

use super::groups::{first_read, grain};
use super::{Driver, Tracked, ensure};

/// What a block's prefix is: its KV group, the chain at its end, and whether its digest came from a caller who keeps the tokens.
type Name = (usize, bool, u64);

/// What was told to be found.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    by_digest: BTreeMap<[u8; 16], Name>,
    digests: BTreeMap<Name, [u8; 16]>,
    /// What every digest ever stood for: one stands for one prefix for ever.
    known: BTreeMap<[u8; 16], Name>,
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
                    let (name, before) = self.stored(block).map_err(|text| format!("{event:?}: {text}"))?;
                    let named = parent.map(|parent| self.shadow.by_digest.get(&parent).copied());
                    // Behind a window and a state what stands before is not needed, and may be gone.
                    let gone =
                        name.0 > 0 && named == Some(None) && parent.and_then(|parent| self.shadow.known.get(&parent).copied()) == before;
                    ensure!(gone || named == before.map(Some), "{event:?}: its parent is {named:?}, must be {before:?}");
                    ensure!(*self.shadow.known.entry(digest).or_insert(name) == name, "{event:?} stood for another prefix before");
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

    /// What a block that was stored holds, and what stands before it.
    fn stored(&mut self, block: BlockId) -> Result<(Name, Option<Name>), String> {
        let c = self.config;
        let has = |r: &Tracked| {
            let more = r.groups.iter().position(|table| table.contains(&block)).map(|index| index + 1);
            if r.table.contains(&block) { Some(0) } else { more }
        };
        let owner = self.publishers.iter().find_map(|&who| Some((who, has(&self.requests[who])?)));
        let (owner, group) = owner.ok_or("no row of this call has the block")?;
        let request = &mut self.requests[owner];
        ensure!(request.is_cacheable(&c), "{} takes no part", request.id);
        // One past its last position, and the positions that it stands for.
        let (end, chain, size) = match c.kv_groups.as_slice()[group] {
            KvGroup::State { grain } => {
                let (at, chain) = self.memory.slot_of(block, 0).content.ok_or("it holds no state")?;
                ensure!(at > 0 && at.is_multiple_of(grain), "its state is at {at}, the grain is {grain}");
                (at, chain, grain)
            }
            KvGroup::Cross => return Err("what an encoder has written is found by nobody".to_owned()),
            _ => {
                let (position, chain) = self.memory.whole(block).ok_or("the block is not whole")?;
                (position + 1, chain, c.block_size)
            }
        };
        ensure!(chain == request.text.chain(end - 1), "{} has another text there", request.id);
        let lengths = request.shape.lengths;
        *self.met.get_mut().entry(if group > 0 { "stored in a further group" } else { "stored" }).or_default() += 1;
        let before = (end > size).then(|| (group, lengths, request.text.chain(end - size - 1)));
        Ok(((group, lengths, chain), before))
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
        let ratio = grain(&c).map_or(1, |grain| grain / c.block_size);
        // What all groups need to go on behind so many blocks.
        let mut served = |set: &BTreeSet<Name>, blocks: u32| {
            let end = blocks * c.block_size;
            let mut has = |group: usize, end: u32| set.contains(&(group, lengths, request.text.chain(end - 1)));
            blocks.is_multiple_of(ratio)
                && c.kv_groups.as_slice().iter().enumerate().all(|(group, &kind)| match kind {
                    KvGroup::Cross => true,
                    KvGroup::State { .. } => blocks == 0 || has(group, end),
                    kind => (first_read(kind, end) / c.block_size..blocks).all(|block| has(group, (block + 1) * c.block_size)),
                })
        };
        let longest = |set: &BTreeSet<Name>, served: &mut dyn FnMut(&BTreeSet<Name>, u32) -> bool| {
            (1..=most).rev().find(|&blocks| served(set, blocks)).unwrap_or(0)
        };
        let (least, most) = (longest(&self.shadow.always, &mut served), longest(&self.shadow.ever, &mut served));
        let found = start / c.block_size;
        ensure!((least..=most).contains(&found), "it finds {found} blocks, but {least} to {most} were told to be there");
        Ok(())
    }
}
