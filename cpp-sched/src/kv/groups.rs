//! KV groups: layers that keep different parts of the past, with block tables of their own over one pool.
//!
//! The arithmetic is here, pure: how many blocks a group has for so many positions, which of them it still needs, and how many it holds at most.

use crate::error::ConfigError;
use crate::ids::BlockId;

/// Groups that a configuration may have.
pub const MAX_KV_GROUPS: usize = 8;

/// What the layers of one group keep of the past. All groups have blocks of one size out of one pool: an executor pads smaller pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum KvGroup {
    /// Full attention: a position reads every one before it.
    #[default]
    Full,
    /// Sliding window: a position reads itself and the `tokens - 1` before it. Blocks behind the window are given back once no result can move
    /// it back any more.
    Window {
        /// Positions that one position reads, itself included.
        tokens: u32,
    },
    /// Chunked-local attention: the sequence is cut every `tokens` positions, and a position reads what is before it in its own piece.
    ChunkedLocal {
        /// Positions of a piece.
        tokens: u32,
    },
    /// Linear attention or a state space model: one block holds the state at a position. Each `grain` positions have a block of their own, which
    /// holds the state at their end once they are computed, and before that the state so far. Chunks of a prompt end on a multiple of the grain
    /// or at the end of what is known; prefixes are found only there, and what is lost is computed again from there.
    State {
        /// Positions between two states that are kept; a multiple of the block size.
        grain: u32,
    },
    /// Cross-attention over an encoder's output of [`cross_tokens`](crate::Request::cross_tokens) positions: taken at each admission, and
    /// written by the first row after it. It is never found by others.
    Cross,
}

impl KvGroup {
    /// A block that is not needed any more leaves the table while its request runs on.
    pub(crate) const fn slides(self) -> bool {
        matches!(self, Self::Window { .. } | Self::ChunkedLocal { .. } | Self::State { .. })
    }

    /// Entries of the table for the positions before `tokens`.
    pub(crate) const fn entries(self, tokens: u32, block_size: u32) -> u32 {
        match self {
            Self::State { grain } => tokens.div_ceil(grain),
            Self::Cross => 0,
            Self::Full | Self::Window { .. } | Self::ChunkedLocal { .. } => tokens.div_ceil(block_size),
        }
    }

    /// The first entry that a position from `base` on needs: those before it are wholly behind the window, the piece, the state that `base` starts
    /// from. `base` is 0 or a multiple of the grain for [`State`](Self::State).
    pub(crate) const fn front(self, base: u32, block_size: u32) -> u32 {
        match self {
            Self::Full | Self::Cross => 0,
            Self::Window { tokens } => (base as u64 + 1).saturating_sub(tokens as u64) as u32 / block_size,
            Self::ChunkedLocal { tokens } => base / tokens * tokens / block_size,
            Self::State { grain } => (base / grain).saturating_sub(1),
        }
    }

    /// Entries held at once at most, with no more than `ahead` positions behind the one that the front is worked out from.
    const fn most(self, ahead: u64, block_size: u32) -> u64 {
        match self {
            Self::Full | Self::Cross => u64::MAX,
            Self::Window { tokens } | Self::ChunkedLocal { tokens } => {
                (tokens as u64 - 1).saturating_add(ahead).div_ceil(block_size as u64) + 1
            }
            Self::State { grain } => ahead.div_ceil(grain as u64) + 2,
        }
    }
}

/// The groups of a configuration, in the order in which the executor names them. The first one is [`Full`](KvGroup::Full): its table is the one
/// that is meant where no group is named. Default: it alone.
///
/// ```
/// use cpp_sched::{Config, KvGroup, KvGroups, Request, RequestId, Schedule, Scheduler};
/// let mut config = Config::default();
/// config.max_batch_tokens = 64;
/// config.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::Window { tokens: 32 }])?;
/// let mut scheduler = Scheduler::new(config)?;
/// scheduler.submit(Request::new(RequestId(1), vec![5; 100], 4)).unwrap();
/// let first = scheduler.schedule().batch().unwrap().id();
/// scheduler.complete(first, &[]).unwrap();
///
/// // 64 tokens are final: position 64 reads 33..=64, and blocks have 16 tokens.
/// let Schedule::Batch(batch) = scheduler.schedule() else { panic!("a chunk is left") };
/// let row = batch.rows()[0];
/// let window = batch.group_table(&row, 1);
/// assert_eq!((row.end(), window.first, window.blocks.len()), (100, 2, 5));
/// assert_eq!(batch.blocks(&row).len(), 7);
/// # Ok::<(), cpp_sched::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroups {
    groups: [KvGroup; MAX_KV_GROUPS],
    len: u32,
    /// Groups with a block for each block of positions.
    by_block: u32,
    /// Groups with a block for each grain.
    by_grain: u32,
    grain: u32,
}

impl Default for KvGroups {
    fn default() -> Self {
        Self { groups: [KvGroup::Full; MAX_KV_GROUPS], len: 1, by_block: 1, by_grain: 0, grain: 1 }
    }
}

impl KvGroups {
    /// These groups. What depends on the rest of the configuration is checked by [`Config::validate`](crate::Config::validate).
    ///
    /// # Errors
    /// No group, more than [`MAX_KV_GROUPS`], a first one that is not [`Full`](KvGroup::Full), a window, piece or grain of 0, two grains,
    /// two groups of cross-attention.
    pub fn new(groups: &[KvGroup]) -> Result<Self, ConfigError> {
        let what = |what| ConfigError::KvGroups { what };
        if groups.len() > MAX_KV_GROUPS {
            return Err(ConfigError::TooLarge { field: "kv_groups (their number)", most: MAX_KV_GROUPS as u64 });
        }
        if groups.first() != Some(&KvGroup::Full) {
            return Err(what("the first group must be Full"));
        }
        let mut all = Self { len: 0, by_block: 0, ..Self::default() };
        let mut cross = 0;
        for &group in groups {
            let size = match group {
                KvGroup::Full => 1,
                KvGroup::Cross => {
                    cross += 1;
                    1
                }
                KvGroup::Window { tokens } | KvGroup::ChunkedLocal { tokens } => tokens,
                KvGroup::State { grain } => {
                    if all.by_grain > 0 && grain != all.grain {
                        return Err(what("all State groups must have one grain"));
                    }
                    all.grain = grain;
                    grain
                }
            };
            if size == 0 {
                return Err(ConfigError::Zero { field: "kv_groups (tokens or grain)" });
            }
            all.by_grain += u32::from(matches!(group, KvGroup::State { .. }));
            all.by_block += u32::from(!matches!(group, KvGroup::State { .. } | KvGroup::Cross));
            all.groups[all.len as usize] = group;
            all.len += 1;
        }
        if cross > 1 {
            return Err(what("at most one group may be Cross"));
        }
        Ok(all)
    }

    /// The groups.
    #[must_use]
    pub fn as_slice(&self) -> &[KvGroup] {
        &self.groups[..self.len as usize]
    }

    /// Full attention alone.
    #[must_use]
    pub const fn is_single(&self) -> bool {
        self.len == 1
    }

    /// The groups behind the first one.
    pub(crate) fn more(&self) -> &[KvGroup] {
        &self.groups[1..self.len as usize]
    }

    pub(crate) fn has_state(&self) -> bool {
        self.by_grain > 0
    }

    pub(crate) fn has_cross(&self) -> bool {
        self.as_slice().contains(&KvGroup::Cross)
    }

    /// What chunks end on, and what is lost is computed again from; 1 = any position.
    pub(crate) const fn grain(&self) -> u32 {
        self.grain
    }

    /// The position up to which nothing is ever computed again, with `committed` final ones: a state cannot be taken back but to one that is kept.
    pub(crate) const fn base(&self, committed: u32) -> u32 {
        if self.grain == 1 { committed } else { committed / self.grain * self.grain }
    }

    /// Blocks that lengthen the tables from `from` to `to` blocks of positions, over all groups.
    pub(crate) fn growth(&self, from: u32, to: u32, block_size: u32) -> u32 {
        let blocks = u64::from(to - from) * u64::from(self.by_block);
        let states = if self.by_grain == 0 {
            0
        } else {
            let ratio = self.grain / block_size;
            u64::from(self.by_grain) * u64::from(to.div_ceil(ratio) - from.div_ceil(ratio))
        };
        clamp(blocks + states)
    }

    /// How far `free` blocks lengthen the tables from `from` blocks of positions on. O(log `free`).
    pub(crate) fn reach(&self, from: u32, free: u32, block_size: u32) -> u32 {
        if self.is_single() {
            return from.saturating_add(free);
        }
        let (mut low, mut high) = (from, from.saturating_add(free / self.by_block));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.growth(from, middle, block_size) <= free { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Blocks still to be taken at one time, at most, by a request whose tables are `len` blocks of positions long and are to become `wanted`;
    /// `fronts` tells where the table of each further group begins, `ahead` how many positions can be computed behind the base.
    pub(crate) fn due(&self, len: u32, wanted: u32, block_size: u32, ahead: u64, fronts: impl Fn(usize) -> u32) -> u32 {
        let wanted = wanted.max(len);
        let mut due = u64::from(wanted - len);
        for (index, &group) in self.more().iter().enumerate() {
            let entries = |blocks: u32| u64::from(group.entries_of_blocks(blocks, block_size));
            let held = entries(len).saturating_sub(u64::from(fronts(index)));
            due += (entries(wanted) - entries(len)).min(group.most(ahead, block_size).saturating_sub(held));
        }
        clamp(due)
    }

    /// Blocks that a request of so many positions needs to run to its end alone.
    pub(crate) fn need(&self, tokens: u32, cross_tokens: u32, block_size: u32, ahead: u64) -> u32 {
        let cross = if self.has_cross() { cross_tokens.div_ceil(block_size) } else { 0 };
        clamp(u64::from(self.due(0, tokens.div_ceil(block_size), block_size, ahead, |_| 0)) + u64::from(cross))
    }
}

impl KvGroup {
    /// Entries of the table that go with so many blocks of positions.
    pub(crate) const fn entries_of_blocks(self, blocks: u32, block_size: u32) -> u32 {
        match self {
            Self::State { grain } => blocks.div_ceil(grain / block_size),
            Self::Cross => 0,
            Self::Full | Self::Window { .. } | Self::ChunkedLocal { .. } => blocks,
        }
    }
}

fn clamp(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

#[cfg(feature = "serde")]
impl serde::Serialize for KvGroups {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.as_slice())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for KvGroups {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let groups = alloc::vec::Vec::<KvGroup>::deserialize(deserializer)?;
        Self::new(&groups).map_err(serde::de::Error::custom)
    }
}

/// The block table of one further group: its blocks from `front` on. Those before it were given back, or never taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct GroupTable {
    front: u32,
    /// Entries at the beginning of `blocks` that are not held any more: they are moved out now and then, not each time.
    gone: u32,
    blocks: alloc::vec::Vec<BlockId>,
}

impl GroupTable {
    /// The number of its first entry.
    pub(crate) const fn front(&self) -> u32 {
        self.front
    }

    /// One past the number of its last entry.
    pub(crate) fn len(&self) -> u32 {
        self.front + self.held().len() as u32
    }

    /// The blocks held, the one of entry `front` first.
    pub(crate) fn held(&self) -> &[BlockId] {
        self.blocks.get(self.gone as usize..).unwrap_or_default()
    }

    /// The blocks held of the entries before `end`.
    pub(crate) fn until(&self, end: u32) -> &[BlockId] {
        let held = self.held();
        &held[..(end.saturating_sub(self.front) as usize).min(held.len())]
    }

    pub(crate) fn get(&self, entry: u32) -> Option<BlockId> {
        self.held().get(entry.checked_sub(self.front)? as usize).copied()
    }

    pub(crate) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        if self.held().is_empty() { None } else { self.blocks.pop() }
    }

    /// Lets go of the first entry. O(1) amortized.
    pub(crate) fn pop_front(&mut self) {
        debug_assert!(!self.held().is_empty());
        self.front += 1;
        self.gone += 1;
        if self.gone as usize * 2 > self.blocks.len() {
            self.tidy();
        }
    }

    /// Moves out what is not held any more.
    pub(crate) fn tidy(&mut self) {
        self.blocks.drain(..(self.gone as usize).min(self.blocks.len()));
        self.gone = 0;
    }

    /// An empty table that begins with entry `front`; its room is kept.
    pub(crate) fn begin(&mut self, front: u32) {
        self.blocks.clear();
        (self.front, self.gone) = (front, 0);
    }

    /// Whether it could have been made: for a table out of a snapshot.
    #[cfg(feature = "serde")]
    pub(crate) fn is_sane(&self) -> bool {
        self.gone == 0 && self.front < super::NIL / 2 && self.blocks.len() < (super::NIL / 2) as usize
    }
}
