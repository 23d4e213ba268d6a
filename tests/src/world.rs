//! A world: a configuration and the operations done in it; the input of property tests and of the fuzzer.
//!
//! Worlds are small on purpose: a few blocks of a few tokens, so that every limit is met in a few dozen operations.

use std::fmt;

use arbitrary::{Arbitrary, Unstructured};
use cpp_sched::{
    Admission, Attos, Balance, Chunking, Config, CostModel, HashKey, KvGroup, KvGroups, ModelDims, Pipelining, PolicyKind, PreemptedOutput,
    Role, Workspace,
};
use proptest::prelude::*;

use crate::op::{Extras, GENE, Op, Swarm, pick};

/// Bytes before the first operation: the configuration and the mixture.
pub const HEADER: usize = 5 * GENE;

/// Bytes of the header that come first: what every world has.
const PLAIN: usize = 64;

/// A configuration and the operations done in it.
#[derive(Clone)]
pub struct World {
    /// Always valid.
    pub config: Config,
    /// In order; whoever runs them drains the scheduler afterwards.
    pub ops: Vec<Op>,
}

/// The fields of the configuration that are no defaults, and one operation a line: short enough to be read, and to be written as a test.
impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |config: &Config| serde_json::to_value(config).map_err(|_| fmt::Error);
        let (mut config, default) = (value(&self.config)?, value(&Config::default())?);
        if let Some(fields) = config.as_object_mut() {
            fields.retain(|name, field| default.get(name) != Some(field));
        }
        writeln!(f, "World {{\n  config: {config}")?;
        for op in &self.ops {
            writeln!(f, "  {op:?}")?;
        }
        f.write_str("}")
    }
}

/// Which worlds are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everything that the kernel offers.
    Any,
    /// What the [reference scheduler](crate::reference) knows.
    Reference,
}

impl World {
    /// Reads a world. Any bytes are one; missing ones read as zero.
    #[must_use]
    pub fn from_bytes(kind: Kind, bytes: &[u8]) -> Self {
        let (header, genes) = bytes.split_at(bytes.len().min(HEADER));
        let (plain, more) = header.split_at(header.len().min(PLAIN));
        let u = &mut Unstructured::new(plain);
        // Decoding cannot fail: an exhausted `Unstructured` yields zeros.
        let mut config = decode_config(kind, u).unwrap_or_default();
        let pool_tokens = config.block_size * config.num_blocks;
        let Ok(mut swarm) = Swarm::decode(u, pool_tokens) else { return Self { config, ops: Vec::new() } };
        if kind == Kind::Any {
            let u = &mut Unstructured::new(more);
            let more = decode_more(&mut config, u).and_then(|()| swarm.decode_more(u));
            if more.and_then(|()| decode_order(&mut config, u)).and_then(|()| decode_limits(&mut config, u)).is_err() {
                return Self { config, ops: Vec::new() };
            }
        }
        let mut ops: Vec<Op> = genes.chunks(GENE).filter_map(|gene| Op::decode(gene, &swarm).ok()).collect();
        if kind == Kind::Reference {
            ops.retain(Op::is_basic);
            for op in &mut ops {
                match op {
                    Op::Submit(shape) => (shape.drafts, shape.extras) = (0, Extras::default()),
                    Op::SetDrafts(_, drafts) => *drafts = 0,
                    _ => {}
                }
            }
        }
        Self { config, ops }
    }

    /// Worlds of up to `most` operations. They shrink by leaving operations out, and towards zero bytes.
    pub fn strategy(kind: Kind, most: usize) -> impl Strategy<Value = Self> {
        let header = [any::<[u8; GENE]>(), any::<[u8; GENE]>(), any::<[u8; GENE]>(), any::<[u8; GENE]>(), any::<[u8; GENE]>()];
        (header, prop::collection::vec(any::<[u8; GENE]>(), 0..=most)).prop_map(move |(header, genes)| {
            let bytes: Vec<u8> = header.iter().chain(&genes).flatten().copied().collect();
            Self::from_bytes(kind, &bytes)
        })
    }
}

impl<'a> Arbitrary<'a> for World {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Self::arbitrary_take_rest(Unstructured::new(u.bytes(u.len())?))
    }

    fn arbitrary_take_rest(u: Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self::from_bytes(Kind::Any, u.take_rest()))
    }
}

fn decode_config(kind: Kind, u: &mut Unstructured<'_>) -> arbitrary::Result<Config> {
    let mut c = Config::default();
    c.block_size = *pick(u, &[4, 1, 2, 3, 8])?;
    c.num_blocks = u.int_in_range(2..=24)?;
    let pool = c.block_size * c.num_blocks;
    c.max_batch_tokens = *pick(u, &[16, 1, 3, 7, 32, 64])?;
    c.max_batch_requests = *pick(u, &[8, 1, 2, 4])?;
    c.max_requests = *pick(u, &[8, 1, 2, 4])?;
    c.max_model_len = *pick(u, &[None, None, Some(pool / 2 + 1), Some(pool + 5)])?;
    c.stages = u.int_in_range(1..=4)?;
    c.max_in_flight = *pick(u, &[None, None, Some(1), Some(2), Some(6)])?;
    c.pipelining = *pick(u, &[Pipelining::Chunk, Pipelining::Chunk, Pipelining::Request, Pipelining::None])?;
    c.admission = *pick(u, &[Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict, Admission::Lazy])?;
    c.prefix_caching = *pick(u, &[false, true])?;
    c.async_scheduling = *pick(u, &[false, false, true])?;
    c.chunks_per_batch = *pick(u, &[1, 1, 2, 4])?;
    c.preempted_output = *pick(u, &[PreemptedOutput::Deliver, PreemptedOutput::Drop])?;
    c.max_prompt_wait = *pick(u, &[8, 1, 2])?;
    c.hash_key = HashKey([u.arbitrary()?; 16]);
    let chunk = *pick(u, &[None, Some(1), Some(3), Some(5), Some(10)])?;
    c.chunking = Chunking::Tokens { max: chunk };
    c.policy = *pick(u, &[PolicyKind::Fcfs, PolicyKind::Priority])?;
    c.max_prompt_tokens_per_batch = *pick(u, &[None, None, Some(2), Some(6)])?;
    c.max_partial_prefills = *pick(u, &[None, None, Some(1), Some(2)])?;
    c.max_bypass = *pick(u, &[0, 0, 1, 3])?;
    if kind == Kind::Any {
        decode_rest(&mut c, u)?;
    }
    Ok(c)
}

/// What the reference scheduler does not know.
fn decode_rest(c: &mut Config, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    use PolicyKind::{Edf, Fair, Fcfs, Lars, Priority, Srpf};
    c.policy = *pick(u, &[Fcfs, Priority, Edf, Srpf, Lars, Fair])?;
    c.balance = *pick(u, &[Balance::Off, Balance::Off, Balance::Count, Balance::Cost])?;
    c.role = *pick(u, &[Role::Unified, Role::Unified, Role::Prefill, Role::Decode])?;
    if c.role == Role::Prefill && c.admission == Admission::Lazy {
        c.admission = Admission::ReservePrompt;
    }
    if *pick(u, &[false, true])? {
        c.model = Some(ModelDims::new(2, 64, 4, 2, 16, 128));
    }
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(*pick(u, &[0, 50, 400])?);
    cost.c1 = Attos::from_ns(*pick(u, &[10, 0, 1])?);
    cost.c2 = Attos(*pick(u, &[0, 500_000_000, 3_300_000_007])?);
    cost.c3 = Attos::from_ns(*pick(u, &[0, 1, 7])?);
    cost.c4 = Attos(*pick(u, &[0, 250_000_000])?);
    cost.c5 = Attos::from_ns(*pick(u, &[0, 20])?);
    match u.int_in_range(0..=5)? {
        0 => {}
        1 | 2 => c.cost = Some(cost),
        3 => {
            c.cost = Some(cost);
            c.chunking = Chunking::Adaptive;
        }
        _ => {
            c.cost = Some(cost);
            c.chunking = Chunking::Cost {
                target_ns: *pick(u, &[200, 1, 60, 1000, 5000])?,
                align: (*pick(u, &[1, 1, 2, 4])?).min(c.max_batch_tokens),
                min: (*pick(u, &[1, 1, 3, 6])?).min(c.max_batch_tokens),
            };
        }
    }
    decode_groups(c, u)
}

/// Several KV groups, in a third of the worlds that have one machine: what does not go with them is left out.
fn decode_groups(c: &mut Config, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    if !*pick(u, &[false, false, true])? {
        return Ok(());
    }
    // More than one group goes with role unified alone; `Driver::new` sees the others refused.
    c.role = Role::Unified;
    let mut groups = vec![KvGroup::Full];
    let grain = c.block_size * *pick(u, &[1, 2, 3])?;
    for _ in 0..u.int_in_range(1..=3)? {
        groups.push(match u.int_in_range(0..=5)? {
            0 => KvGroup::Full,
            1 => KvGroup::ChunkedLocal { tokens: *pick(u, &[4, 1, 5, 8, 12])? },
            2 | 3 => KvGroup::State { grain },
            4 if !groups.contains(&KvGroup::Cross) => KvGroup::Cross,
            _ => KvGroup::Window { tokens: *pick(u, &[4, 1, 2, 7, 12])? },
        });
    }
    c.num_blocks *= 1 + u.int_in_range(0..=groups.len() as u32)?;
    if groups.contains(&KvGroup::State { grain }) {
        let align = if let Chunking::Cost { align, .. } = c.chunking { align } else { 1 };
        let most = grain * align;
        c.chunks_per_batch = 1;
        c.max_batch_tokens = c.max_batch_tokens.max(most);
        c.max_prompt_tokens_per_batch = c.max_prompt_tokens_per_batch.map(|tokens| tokens.max(most));
        if let Chunking::Tokens { max: Some(max) } = &mut c.chunking {
            *max = grain.max(*max);
        }
    }
    c.kv_groups = KvGroups::new(&groups).unwrap_or_default();
    Ok(())
}

/// What else an engine may ask for.
fn decode_more(c: &mut Config, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    c.async_distance = *pick(u, &[1, 1, 2, 3])?;
    c.max_adapters_per_batch = *pick(u, &[None, None, Some(1), Some(2)])?;
    c.lookahead_tokens = *pick(u, &[0, 0, 1, 3])?;
    let slots = *pick(u, &[0, 0, 1, 2])?;
    c.draft_slots = slots.min(c.max_batch_tokens - 1);
    if c.validate().is_err() {
        // A grain must fit beside a drafter's own.
        c.draft_slots = 0;
    }
    c.kv_consumers = *pick(u, &[1, 1, 2, 3])?;
    c.kv_lease_ns = *pick(u, &[None, None, Some(300), Some(5000)])?;
    c.kv_events = *pick(u, &[false, true])?;
    Ok(())
}

/// The encoder's limits, latency targets, and what else prices or bounds a batch.
fn decode_limits(c: &mut Config, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    c.encoder_budget_tokens = *pick(u, &[None, Some(5), Some(7), Some(12)])?;
    c.encoder_cache_tokens = *pick(u, &[None, Some(5), Some(8), Some(30)])?;
    let bits = u.arbitrary::<u16>()?;
    let part = |shift: u32, most: u16| (bits >> shift) % most;
    c.latency.max_prefill_wait_ns = [None, None, Some(1), Some(4000)][part(0, 4) as usize];
    c.latency.space_sharing = part(2, 4) == 1;
    c.latency.max_decode_wait = [8, 1][part(4, 2) as usize];
    c.latency.reject_above_millionths = [None, None, None, Some(1_500_000)][part(5, 4) as usize].filter(|_| c.cost.is_some());
    c.adaptive.align = [64, 1, 2, 5][part(7, 4) as usize];
    c.adaptive.min = [None, Some(2)][part(9, 2) as usize];
    c.adaptive.token_latency_ns = [None, Some(900)][part(10, 2) as usize];
    if let Some(cost) = &mut c.cost {
        cost.tile = [0, 4][part(11, 2) as usize];
        cost.linear_floor = Attos::from_ns([0, 90][part(12, 2) as usize]);
        cost.prefill_read = Attos([0, 700_000_000][part(13, 2) as usize]);
    }
    let workspace = Workspace { bytes: 400, per_token: 13, per_history: 3 };
    c.workspace = (part(14, 4) == 3).then_some(workspace);
    Ok(())
}

/// Who comes first, beyond the policy's name.
fn decode_order(c: &mut Config, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    if *pick(u, &[false, false, false, true])? {
        c.policy = PolicyKind::Hybrid;
    }
    c.hybrid_alpha_ns = *pick(u, &[8_000_000, 0, 10])?;
    c.srpf_ageing_ns = *pick(u, &[None, None, Some(1), Some(100)])?;
    c.priority_ageing_ns = *pick(u, &[None, None, None, Some(1), Some(500)])?;
    c.relegation = *pick(u, &[false, false, true])? && c.cost.is_some();
    c.feasibility_guard = *pick(u, &[false, false, true])? && c.cost.is_some();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_valid_world() {
        for seed in 0..2000u32 {
            let bytes: Vec<u8> =
                (0..200u32).map(|i| (seed.wrapping_mul(2_654_435_761) ^ i.wrapping_mul(40_503)).to_be_bytes()[1]).collect();
            for len in [0, 5, HEADER, HEADER + 1, 200] {
                for kind in [Kind::Any, Kind::Reference] {
                    let world = World::from_bytes(kind, &bytes[..len]);
                    assert_eq!(world.config.validate(), Ok(()), "{world:?}");
                    assert_eq!(world.ops.len(), len.saturating_sub(HEADER).div_ceil(GENE));
                }
            }
        }
    }

    #[test]
    fn the_fuzzer_reads_the_same_worlds() {
        let bytes: Vec<u8> = (0..150).collect();
        let world = World::arbitrary_take_rest(Unstructured::new(&bytes)).unwrap();
        assert_eq!(format!("{world:?}"), format!("{:?}", World::from_bytes(Kind::Any, &bytes)));
    }
}
