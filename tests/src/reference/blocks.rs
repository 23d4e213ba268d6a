//! Blocks of the reference scheduler: who holds them, how they are found again, who gives them up.

use cpp_sched::{Admission, Event, KvUsage};

use super::{Key, Reference, State};

/// What a prefix is called: whether its tokens are the caller's, and the hash of all of them.
type Name = (bool, u64);

#[derive(Clone, Debug, Default)]
struct Block {
    holders: u32,
    /// It must not be written before the batch of this number is done.
    fence: Option<u64>,
    name: Option<Name>,
}

/// All blocks.
#[derive(Debug)]
pub(super) struct Pool {
    blocks: Vec<Block>,
    /// Those that nobody holds, least recently used first. A block moves to the end when its fence ends.
    unused: Vec<usize>,
    /// The blocks of each name; the first one is the one that is hit.
    named: Vec<(Name, Vec<usize>)>,
    /// Batches before this one are done.
    oldest: u64,
}

impl Pool {
    pub(super) fn new(num_blocks: u32) -> Self {
        let blocks = vec![Block::default(); num_blocks as usize];
        Self { unused: (0..blocks.len()).collect(), blocks, named: Vec::new(), oldest: 0 }
    }

    fn is_fenced(&self, block: usize) -> bool {
        self.blocks[block].fence.is_some_and(|batch| batch >= self.oldest)
    }

    pub(super) fn is_available(&self, block: usize) -> bool {
        self.blocks[block].holders == 0 && !self.is_fenced(block)
    }

    pub(super) fn available(&self) -> u32 {
        self.unused.iter().filter(|&&block| !self.is_fenced(block)).count() as u32
    }

    fn fenced(&self) -> u32 {
        self.unused.len() as u32 - self.available()
    }

    pub(super) fn usage(&self) -> KvUsage {
        let named = |block: &&usize| !self.is_fenced(**block) && self.blocks[**block].name.is_some();
        let mut usage = KvUsage::default();
        usage.total = self.blocks.len() as u32;
        usage.held = usage.total - self.unused.len() as u32;
        usage.fenced = self.fenced();
        usage.cached = self.unused.iter().filter(named).count() as u32;
        usage.free = self.available() - usage.cached;
        usage
    }

    pub(super) fn hold(&mut self, block: usize) {
        self.blocks[block].holders += 1;
        self.unused.retain(|&other| other != block);
    }

    pub(super) fn release(&mut self, block: usize, fence: Option<u64>) {
        let b = &mut self.blocks[block];
        b.fence = b.fence.max(fence);
        b.holders -= 1;
        if b.holders == 0 {
            self.unused.push(block);
        }
    }

    /// A block that holds nothing of worth, else the least recently used one.
    fn take(&mut self) -> usize {
        let free = |pool: &Self, named: bool| {
            pool.unused.iter().copied().find(|&block| !pool.is_fenced(block) && pool.blocks[block].name.is_some() == named)
        };
        let block = free(self, false).or_else(|| free(self, true)).expect("a block was counted");
        if let Some(name) = self.blocks[block].name.take() {
            for (_, blocks) in self.named.iter_mut().filter(|(other, _)| *other == name) {
                blocks.retain(|&other| other != block);
            }
            self.named.retain(|(_, blocks)| !blocks.is_empty());
        }
        self.hold(block);
        block
    }

    /// The oldest batch is done.
    pub(super) fn end_fence(&mut self, batch: u64) {
        self.oldest = batch + 1;
        let ended: Vec<_> = self.unused.iter().copied().filter(|&block| self.blocks[block].fence == Some(batch)).collect();
        self.unused.retain(|block| !ended.contains(block));
        self.unused.extend(ended);
    }

    fn find(&self, name: Name) -> Option<usize> {
        self.named.iter().find(|(other, _)| *other == name).map(|(_, blocks)| blocks[0])
    }

    fn publish(&mut self, block: usize, name: Name) {
        self.blocks[block].name = Some(name);
        match self.named.iter_mut().find(|(other, _)| *other == name) {
            Some((_, blocks)) => blocks.insert(1, block),
            None => self.named.push((name, vec![block])),
        }
    }

    pub(super) fn forget(&mut self) {
        self.named.clear();
        self.blocks.iter_mut().for_each(|block| block.name = None);
    }
}

impl Reference {
    /// Where the blocks are.
    #[must_use]
    pub fn kv_usage(&self) -> KvUsage {
        self.pool.usage()
    }

    /// Whole blocks of what is known that have a name, from the first one on.
    fn names(&mut self, who: usize) -> Vec<Name> {
        let size = self.config.block_size;
        let r = &mut self.requests[who];
        let whole = if r.shape.lengths { r.prompt_len } else { r.known() } / size;
        let cached = self.config.prefix_caching && (!r.shape.lengths || r.shape.hashed);
        (0..if cached { whole } else { 0 }).map(|index| (r.shape.lengths, r.text.chain((index + 1) * size - 1))).collect()
    }

    /// The longest prefix that the cache has; at least one token is left to compute.
    pub(super) fn find_prefix(&mut self, who: usize) -> Vec<usize> {
        let most = (self.requests[who].known() - 1) / self.config.block_size;
        let names = self.names(who);
        names.into_iter().take(most as usize).map_while(|name| self.pool.find(name)).collect()
    }

    /// What has become whole by batch `batch` is found from now on, behind a parent that is.
    pub(super) fn publish(&mut self, who: usize, batch: u64) {
        let whole = self.requests[who].committed / self.config.block_size;
        let names = self.names(who);
        let from = self.requests[who].published;
        if batch >= self.publish_from {
            for index in from as usize..names.len().min(whole as usize) {
                let table = &self.requests[who].table;
                let chained = index == 0 || self.pool.blocks[table[index - 1]].name.is_some();
                if !chained {
                    break;
                }
                self.pool.publish(table[index], names[index]);
            }
        }
        self.requests[who].published = from.max(whole);
    }

    /// `n` more blocks: set aside ones, available ones, or those of others that come after it.
    pub(super) fn get_blocks(&mut self, who: usize, n: u32) -> bool {
        let beyond = n.saturating_sub(self.requests[who].reserved);
        if beyond > self.unreserved() && !self.make_room(who, beyond) {
            self.build.no_blocks = true;
            let lacking = (self.key(who), who);
            self.lacking = Some(self.lacking.map_or(lacking, |other| other.min(lacking)));
            return false;
        }
        self.lacks_no_more(who);
        for _ in 0..n {
            let block = self.pool.take();
            let r = &mut self.requests[who];
            r.table.push(block);
            r.reserved = r.reserved.saturating_sub(1);
        }
        true
    }

    /// Preempts those that come after `who`, the last one first, until there are `n` blocks or the fenced ones will do.
    fn make_room(&mut self, who: usize, n: u32) -> bool {
        while self.unreserved() < n {
            let missing = n - self.unreserved();
            let victim =
                (0..self.requests.len()).filter(|&other| self.requests[other].state == State::Running).max_by_key(|&r| self.key(r));
            if self.config.admission == Admission::NoEvict {
                return false;
            }
            if missing <= self.pool.fenced().saturating_sub(self.build.claims) {
                self.build.claims += missing;
                return false;
            }
            match victim {
                Some(victim) if self.key(victim) > self.key(who) => self.preempt(victim),
                _ => return false,
            }
        }
        true
    }

    fn preempt(&mut self, who: usize) {
        if self.build.rows.iter().any(|row| row.who == who) {
            // It leaves the batch under construction, whole.
            let (gone, rest) = std::mem::take(&mut self.build.rows).into_iter().partition(|row| row.who == who);
            self.build.rows = rest;
            let gone: Vec<super::Row> = gone;
            self.build.rows_left += gone.len() as u32;
            self.build.tokens_left += gone.iter().map(|row| row.end - row.start).sum::<u32>();
        }
        self.build.visited.retain(|&other| other != who);
        self.leave(who);
        let r = &mut self.requests[who];
        r.state = State::Waiting;
        r.epoch += 1;
        (r.scheduled, r.committed, r.published) = (0, 0, 0);
        self.events.push(Event::Preempted { request: r.id });
        self.preempted.push(r.id);
    }

    /// It gives up its blocks, the last one first, and its place among the decodes.
    pub(super) fn leave(&mut self, who: usize) {
        self.ready.retain(|&other| other != who);
        self.lacks_no_more(who);
        let fence = self.flight.iter().filter(|batch| batch.rows.iter().any(|row| row.who == who)).map(|batch| batch.id).max();
        // Of rows of an older epoch it is not known which blocks they had.
        let exact = self.rows(who).count() == self.live_rows(who).count();
        let end = self.live_rows(who).map(|row| row.end).max().unwrap_or(0);
        let covered = if exact { self.blocks(end) as usize } else { usize::MAX };
        let r = &mut self.requests[who];
        r.reserved = 0;
        for (index, block) in std::mem::take(&mut r.table).into_iter().enumerate().rev() {
            self.pool.release(block, fence.filter(|_| index < covered));
        }
    }

    fn lacks_no_more(&mut self, who: usize) {
        self.lacking = self.lacking.filter(|&(_, lacking): &(Key, usize)| lacking != who);
    }
}
