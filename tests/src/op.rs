//! Operations on a scheduler as plain values, and their encoding in bytes.
//!
//! An operation is decoded from a *gene* of [`GENE`] bytes, always. So a list of operations shrinks well (a gene taken out does not shift its
//! neighbours), and what the fuzzer finds is a property test's input and the other way round. Zero bytes decode to the simplest operation.

use std::fmt;

use arbitrary::Unstructured;
use cpp_sched::{Balance, Gate, GateSet, Pause};

/// Bytes that encode one operation.
pub const GENE: usize = 20;

/// Bytes of a gene before those of [`Extras`].
const PLAIN: usize = 16;

/// What a request is like: decided by the generator, turned into a real one by the [driver](crate::driver).
#[derive(Clone, PartialEq, Eq)]
pub struct Shape {
    /// Its id; small, so that ids are used twice.
    pub id: u64,
    /// Seed of the text that is its own.
    pub author: u64,
    /// Requests of one family begin with the same text.
    pub family: u8,
    /// Tokens in common with the family.
    pub shared: u32,
    /// Tokens of the prompt.
    pub len: u32,
    /// Number of the cache salt; 0 = none.
    pub salt: u8,
    /// Output tokens at most.
    pub max_tokens: u32,
    /// The output of this number is a stop token.
    pub stop_at: Option<u32>,
    /// Smaller first.
    pub priority: i64,
    /// Shut until `Ready`.
    pub gated: bool,
    /// Whether the caller keeps the tokens and hands in lengths and digests.
    pub lengths: bool,
    /// With `lengths`: whether there are digests.
    pub hashed: bool,
    /// Drafts proposed after each token.
    pub drafts: u32,
    /// How many drafts are right, by the number of tokens delivered before.
    pub accept: [u8; 2],
    /// Target for the first token.
    pub ttft_slo_ns: Option<u64>,
    /// For the policy `fair`.
    pub tenant: Option<u64>,
    /// For the policy `fair`.
    pub weight_millionths: u64,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
    /// What only some requests of an engine ask for.
    pub extras: Extras,
}

/// What only some requests of an engine ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Gates that are shut at the submit, beside [`Shape::gated`].
    pub gates: GateSet,
    /// Constrained by a grammar.
    pub constrained: bool,
    /// No stop token counts before so many outputs.
    pub min_tokens: u32,
    /// The adapter that it runs with.
    pub adapter: Option<u32>,
    /// Prompt log-probabilities: nothing is read from the prefix cache.
    pub skip_cache_read: bool,
    /// Pooling: no output token.
    pub pooling: bool,
    /// It pauses at its end.
    pub session: bool,
}

impl Extras {
    /// Which of them the bits of `traits` allow.
    fn decode(bytes: &[u8], traits: u8, max_tokens: u32) -> arbitrary::Result<Self> {
        let u = &mut Unstructured::new(bytes);
        let none = GateSet::NONE;
        let two = none.with(Gate::Grammar).with(Gate::Kv);
        let gates = [none, none, none, Gate::Grammar.into(), Gate::Adapter.into(), Gate::Kv.into(), Gate::Input.into(), two];
        let gates = *pick(u, &gates)?;
        let (flags, least) = (u.arbitrary::<u8>()?, u.arbitrary::<u8>()?);
        let adapter = *pick(u, &[None, Some(1), Some(2), Some(3)])?;
        let on = |bit: u8, holds: bool| traits & (1 << bit) != 0 && holds;
        Ok(Self {
            gates: if on(0, true) { gates } else { none },
            constrained: on(1, flags & 1 != 0),
            skip_cache_read: on(2, flags & 6 == 6),
            pooling: on(3, flags & 0x38 == 0x38),
            session: on(4, flags & 0xc0 == 0xc0),
            min_tokens: if on(5, true) { u32::from(least) % (max_tokens + 1) } else { 0 },
            adapter: adapter.filter(|_| on(6, true)),
        })
    }
}

/// One line, with what is out of the ordinary.
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ id: {}, len: {}, max_tokens: {}", self.id, self.len, self.max_tokens)?;
        let extras = [
            ("shared", self.shared > 0, format!("{} of family {}", self.shared, self.family)),
            ("salt", self.salt > 0, self.salt.to_string()),
            ("stop_at", self.stop_at.is_some(), format!("{:?}", self.stop_at)),
            ("priority", self.priority != 0, self.priority.to_string()),
            ("gated", self.gated, self.gated.to_string()),
            ("lengths", self.lengths, format!("{}, hashed: {}", self.lengths, self.hashed)),
            ("drafts", self.drafts > 0, format!("{}", self.drafts)),
            ("accept", self.accept != [0, 0], format!("{:?}", self.accept)),
            ("ttft_slo_ns", self.ttft_slo_ns.is_some(), format!("{:?}", self.ttft_slo_ns)),
            ("tenant", self.tenant.is_some(), format!("{:?}", self.tenant)),
            ("weight_millionths", self.weight_millionths != 1_000_000, self.weight_millionths.to_string()),
            ("flaw", self.flaw.is_some(), format!("{:?}", self.flaw)),
            ("extras", self.extras != Extras::default(), format!("{:?}", self.extras)),
        ];
        for (name, shown, value) in extras {
            if shown {
                write!(f, ", {name}: {value}")?;
            }
        }
        f.write_str(" }")
    }
}

/// What can be wrong with a request, besides being too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No prompt.
    EmptyPrompt,
    /// No output wanted.
    ZeroMaxTokens,
    /// A tenant without a share.
    ZeroWeight,
    /// One digest too many.
    BlockHashes,
}

/// What can be wrong with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A batch that was never scheduled.
    Future,
    /// A batch that is done already.
    Past,
    /// A batch that is not the oldest.
    Early,
    /// The last sample is missing.
    MissingSample,
    /// A sample too many.
    ExtraSample,
    /// A sample of somebody else.
    OtherRequest,
    /// A sample without a token.
    NoTokens,
    /// A sample with more tokens than its row can yield.
    TooManyTokens,
}

/// One call, or a short run of calls. Ids need not be alive.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// Hand in a request.
    Submit(Shape),
    /// Ask for one batch.
    Schedule,
    /// Ask for batches until there is none.
    Fill,
    /// Hand back the oldest result.
    Complete,
    /// Hand back a result that must be refused.
    CompleteWrong(Wrong),
    /// Lose all batches in flight.
    Fail,
    /// Abort a request.
    Abort(u64),
    /// Open a gate.
    Ready(u64),
    /// Change the number of drafts.
    SetDrafts(u64, u32),
    /// Set the clock (a step back is ignored).
    Tick(u64),
    /// Forget all prefixes.
    ResetPrefixCache,
    /// The peer has read everything.
    KvSent(u64),
    /// The peer will never read.
    KvSendFailed(u64),
    /// The prompt's KV is there.
    KvArrived(u64),
    /// The prompt's KV will not come.
    KvFailed(u64),
    /// Open one gate.
    Open(u64, Gate),
    /// Shut one gate.
    Shut(u64, Gate),
    /// Pause scheduling, or end the pause.
    Pause(Pause),
    /// Refuse new requests, or take them again.
    Drain(bool),
    /// Change one budget at run time.
    Reconfigure(Knob),
    /// Forget all prefixes and preempt everybody.
    ResetAllKv,
    /// Lose one batch in flight: the one of this number, counted from the oldest.
    Lose(u32),
    /// More input for a session.
    Extend {
        /// Which session.
        id: u64,
        /// Tokens of input.
        len: u32,
        /// Its next output at most.
        max_tokens: u32,
        /// Seed of the input.
        author: u64,
    },
    /// Another request over the same prompt.
    Fork {
        /// Whose prompt.
        parent: u64,
        /// The new one; its prompt is the parent's.
        child: Shape,
    },
    /// One of several consumers has read everything.
    KvSentBy(u64, u32),
    /// Let the clock run on for so long.
    Pass(u64),
}

/// What can change at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// `max_batch_tokens`.
    BatchTokens(u32),
    /// `max_batch_requests`.
    BatchRequests(u32),
    /// `max_requests`.
    Requests(u32),
    /// The most tokens of a chunk.
    Chunk(Option<u32>),
    /// `chunks_per_batch`.
    ChunksPerBatch(u32),
    /// `max_prompt_tokens_per_batch`.
    PromptTokens(Option<u32>),
    /// `max_partial_prefills`.
    PartialPrefills(Option<u32>),
    /// `max_bypass`.
    Bypass(u32),
    /// `balance`.
    Balance(Balance),
    /// `async_distance`.
    Distance(u32),
    /// `max_adapters_per_batch`.
    Adapters(Option<u32>),
    /// `draft_slots`.
    DraftSlots(u32),
    /// `kv_lease_ns`.
    Lease(Option<u64>),
    /// `c0` of the cost model, in nanoseconds.
    Cost(u64),
    /// `num_blocks`, which cannot change.
    Blocks(u32),
    /// Chunking chooses its target itself.
    Adaptive,
}

impl Knob {
    fn decode(u: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let kind = u.int_in_range(0..=15)?;
        let n = u32::from(u.arbitrary::<u8>()?);
        let small = 1 + n % 4;
        let some = (n >= 64).then_some(small);
        Ok(match kind {
            0 => Self::BatchTokens(1 + n % 40),
            1 => Self::BatchRequests(1 + n % 8),
            2 => Self::Requests(1 + n % 8),
            3 => Self::Chunk((n >= 64).then_some(1 + n % 12)),
            4 => Self::ChunksPerBatch(small),
            5 => Self::PromptTokens((n >= 64).then_some(1 + n % 10)),
            6 => Self::PartialPrefills(some),
            7 => Self::Bypass(n % 4),
            8 => Self::Balance([Balance::Off, Balance::Count, Balance::Cost][n as usize % 3]),
            9 => Self::Distance(n % 4),
            10 => Self::Adapters(some),
            11 => Self::DraftSlots(n % 3),
            12 => Self::Lease((n >= 64).then_some(u64::from(n) * 20)),
            13 => Self::Cost(u64::from(n) * 3),
            14 => Self::Blocks(n),
            _ => Self::Adaptive,
        })
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submit(shape) => write!(f, "Submit({shape:?})"),
            Self::Schedule => f.write_str("Schedule"),
            Self::Fill => f.write_str("Fill"),
            Self::Complete => f.write_str("Complete"),
            Self::CompleteWrong(wrong) => write!(f, "CompleteWrong({wrong:?})"),
            Self::Fail => f.write_str("Fail"),
            Self::Abort(id) => write!(f, "Abort({id})"),
            Self::Ready(id) => write!(f, "Ready({id})"),
            Self::SetDrafts(id, drafts) => write!(f, "SetDrafts({id}, {drafts})"),
            Self::Tick(now_ns) => write!(f, "Tick({now_ns})"),
            Self::ResetPrefixCache => f.write_str("ResetPrefixCache"),
            Self::KvSent(id) => write!(f, "KvSent({id})"),
            Self::KvSendFailed(id) => write!(f, "KvSendFailed({id})"),
            Self::KvArrived(id) => write!(f, "KvArrived({id})"),
            Self::KvFailed(id) => write!(f, "KvFailed({id})"),
            Self::Open(id, gate) => write!(f, "Open({id}, {gate:?})"),
            Self::Shut(id, gate) => write!(f, "Shut({id}, {gate:?})"),
            Self::Pause(pause) => write!(f, "Pause({pause:?})"),
            Self::Drain(drain) => write!(f, "Drain({drain})"),
            Self::Reconfigure(knob) => write!(f, "Reconfigure({knob:?})"),
            Self::ResetAllKv => f.write_str("ResetAllKv"),
            Self::Lose(nth) => write!(f, "Lose({nth})"),
            Self::Extend { id, len, max_tokens, author } => {
                write!(f, "Extend {{ id: {id}, len: {len}, max_tokens: {max_tokens}, author: {author} }}")
            }
            Self::Fork { parent, child } => write!(f, "Fork {{ parent: {parent}, child: {child:?} }}"),
            Self::KvSentBy(id, consumer) => write!(f, "KvSentBy({id}, {consumer})"),
            Self::Pass(ns) => write!(f, "Pass({ns})"),
        }
    }
}

/// Kinds of operations that a run may do without; see [`Swarm`].
const OPTIONAL: usize = 12;

/// The kinds among them that [`Swarm::decode_more`] switches.
const MORE: usize = 11;

/// Which kinds of operations a run knows, and how often each comes.
///
/// A run in which everything happens seldom gets anywhere: an abort here, a failure there, and no state ever grows old. Switching kinds off,
/// run by run, reaches states that no even mixture reaches (swarm testing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    weights: [u8; OPTIONAL],
    more: [u8; MORE],
    /// Bits: which [`Extras`] requests may have.
    traits: u8,
    /// How long prompts are at most.
    pub max_prompt: u32,
    /// How many outputs are asked for at most.
    pub max_tokens: u32,
    /// How many ids there are.
    pub ids: u64,
}

impl Swarm {
    /// Reads a mixture.
    ///
    /// # Errors
    /// Never with zero or more bytes left: missing bytes read as zero.
    pub fn decode(u: &mut Unstructured<'_>, pool_tokens: u32) -> arbitrary::Result<Self> {
        let mut weights = [0; OPTIONAL];
        for weight in &mut weights {
            *weight = *pick(u, &[0, 1, 0, 4])?;
        }
        let eighths = *pick(u, &[4, 1, 2, 8, 9])?;
        Ok(Self {
            weights,
            more: [0; MORE],
            traits: 0,
            max_prompt: (pool_tokens * eighths / 8).clamp(1, 240),
            max_tokens: *pick(u, &[4, 1, 12, 60])?,
            ids: *pick(u, &[12, 4, 40])?,
        })
    }

    /// Reads the rest of a mixture.
    ///
    /// # Errors
    /// Never with zero or more bytes left: missing bytes read as zero.
    pub fn decode_more(&mut self, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let all = u.arbitrary::<u8>()?;
        self.traits = if all >= 192 { 0x7f } else { all & u.arbitrary::<u8>()? };
        for weight in &mut self.more {
            *weight = *pick(u, &[0, 1, 0, 3])?;
        }
        Ok(())
    }
}

/// One of `choices`; the first one for a zero byte.
pub(crate) fn pick<'c, T>(u: &mut Unstructured<'_>, choices: &'c [T]) -> arbitrary::Result<&'c T> {
    Ok(&choices[u.int_in_range(0..=choices.len() - 1)?])
}

impl Op {
    /// The ids that it names.
    pub fn ids_mut(&mut self) -> Vec<&mut u64> {
        match self {
            Self::Submit(shape) => vec![&mut shape.id],
            Self::Fork { parent, child } => vec![parent, &mut child.id],
            Self::Abort(id) | Self::Ready(id) | Self::SetDrafts(id, _) | Self::Open(id, _) | Self::Shut(id, _) => vec![id],
            Self::KvSent(id) | Self::KvSendFailed(id) | Self::KvArrived(id) | Self::KvFailed(id) => vec![id],
            Self::KvSentBy(id, _) | Self::Extend { id, .. } => vec![id],
            _ => Vec::new(),
        }
    }

    /// Whether the [reference scheduler](crate::reference) knows it.
    #[must_use]
    pub fn is_basic(&self) -> bool {
        !matches!(
            self,
            Self::Open(..)
                | Self::Shut(..)
                | Self::Pause(_)
                | Self::Drain(_)
                | Self::Reconfigure(_)
                | Self::ResetAllKv
                | Self::Lose(_)
                | Self::Extend { .. }
                | Self::Fork { .. }
                | Self::KvSentBy(..)
        )
    }

    /// Reads one operation from a gene.
    ///
    /// # Errors
    /// Never with zero or more bytes left: missing bytes read as zero.
    pub fn decode(gene: &[u8], swarm: &Swarm) -> arbitrary::Result<Self> {
        let u = &mut Unstructured::new(gene);
        let fixed = [10, 8, 4, 6];
        let total = fixed.iter().chain(&swarm.weights).chain(&swarm.more).map(|w| u32::from(*w)).sum::<u32>();
        let mut at = u.int_in_range(0..=total - 1)?;
        let mut kind = 0;
        for weight in fixed.iter().chain(&swarm.weights).chain(&swarm.more) {
            if at < u32::from(*weight) {
                break;
            }
            at -= u32::from(*weight);
            kind += 1;
        }
        let id = u64::from(u.arbitrary::<u8>()?) % swarm.ids;
        Ok(match kind {
            0 => Self::Schedule,
            1 => Self::Complete,
            2 => Self::Fill,
            3 => Self::Submit(Shape::decode(u, gene, id, swarm)?),
            4 => Self::CompleteWrong(*pick(u, &Wrong::ALL)?),
            5 => Self::Fail,
            6 => Self::Abort(id),
            7 => Self::Ready(id),
            8 => Self::SetDrafts(id, u.int_in_range(0..=4)?),
            9 => Self::Tick(u.arbitrary::<u16>()?.into()),
            10 => Self::ResetPrefixCache,
            11 => Self::KvSent(id),
            12 => Self::KvSendFailed(id),
            13 => Self::KvArrived(id),
            14 => Self::KvFailed(id),
            16 => Self::Open(id, *pick(u, &GATES)?),
            17 => Self::Shut(id, *pick(u, &GATES)?),
            18 => Self::Pause(*pick(u, &[Pause::Off, Pause::New, Pause::All, Pause::Off])?),
            19 => Self::Drain(u.arbitrary::<u8>()? >= 192),
            20 => Self::Reconfigure(Knob::decode(u)?),
            21 => Self::ResetAllKv,
            22 => Self::Lose(u.int_in_range(0..=3)?),
            23 => {
                let (len, max_tokens) = (1 + u32::from(u.arbitrary::<u8>()?) % 12, u32::from(u.arbitrary::<u8>()?) % 8);
                Self::Extend { id, len, max_tokens, author: u.arbitrary::<u8>()?.into() }
            }
            24 => {
                let child = u64::from(u.arbitrary::<u8>()?) % swarm.ids;
                Self::Fork { parent: id, child: Shape::decode(u, gene, child, swarm)? }
            }
            25 => Self::KvSentBy(id, u.int_in_range(0..=3)?),
            26 => Self::Pass(u.arbitrary::<u16>()?.into()),
            _ => Self::Submit(Shape::decode(u, gene, id, swarm)?),
        })
    }
}

const GATES: [Gate; 5] = [Gate::Other, Gate::Grammar, Gate::Kv, Gate::Input, Gate::Adapter];

impl Wrong {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Future,
        Self::Past,
        Self::Early,
        Self::MissingSample,
        Self::ExtraSample,
        Self::OtherRequest,
        Self::NoTokens,
        Self::TooManyTokens,
    ];
}

impl Shape {
    /// A request with nothing out of the ordinary, whose text is its own.
    #[must_use]
    pub fn new(id: u64, len: u32, max_tokens: u32) -> Self {
        Self {
            id,
            author: id,
            family: 0,
            shared: 0,
            len,
            salt: 0,
            max_tokens,
            stop_at: None,
            priority: 0,
            gated: false,
            lengths: false,
            hashed: true,
            drafts: 0,
            accept: [0, 0],
            ttft_slo_ns: None,
            tenant: None,
            weight_millionths: 1_000_000,
            flaw: None,
            extras: Extras::default(),
        }
    }

    /// `gene` holds the extras at its end, so that what comes before may be of any length.
    fn decode(u: &mut Unstructured<'_>, gene: &[u8], id: u64, swarm: &Swarm) -> arbitrary::Result<Self> {
        let mut shape = Self::decode_plain(u, id, swarm)?;
        shape.extras = Extras::decode(gene.get(PLAIN..).unwrap_or_default(), swarm.traits, shape.max_tokens)?;
        Ok(shape)
    }

    fn decode_plain(u: &mut Unstructured<'_>, id: u64, swarm: &Swarm) -> arbitrary::Result<Self> {
        let len = 1 + u32::from(u.arbitrary::<u8>()?) % swarm.max_prompt;
        // Half of them share all that they have: equal prompts, and prompts that begin with another one.
        let shared = u.arbitrary::<u8>()?;
        let shared = if shared >= 128 { len } else { u32::from(shared) % (len + 1) };
        let max_tokens = 1 + u32::from(u.arbitrary::<u8>()?) % swarm.max_tokens;
        let family_and_salt = u.arbitrary::<u8>()?;
        let flags = u.arbitrary::<u8>()?;
        let stop = u.arbitrary::<u8>()?;
        Ok(Self {
            id,
            author: id,
            shared,
            len,
            max_tokens,
            family: family_and_salt % 3,
            salt: if family_and_salt >= 192 { 1 } else { 0 },
            stop_at: (stop >= 160).then(|| u32::from(stop) % max_tokens),
            gated: flags & 0xc0 == 0xc0,
            lengths: flags & 0x30 == 0x30,
            hashed: flags & 0x08 == 0,
            flaw: if flags & 7 == 7 {
                Some(*pick(u, &[Flaw::EmptyPrompt, Flaw::ZeroMaxTokens, Flaw::ZeroWeight, Flaw::BlockHashes])?)
            } else {
                None
            },
            priority: i64::from(*pick(u, &[0, 1, -1, 2])?),
            drafts: *pick(u, &[0, 0, 1, 3])?,
            accept: [u.arbitrary::<u8>()? % 4, u.arbitrary::<u8>()? % 4],
            ttft_slo_ns: *pick(u, &[None, Some(100), Some(5000), Some(60_000)])?,
            tenant: *pick(u, &[None, Some(1), Some(2)])?,
            weight_millionths: *pick(u, &[1_000_000, 250_000, 3_000_000])?,
            extras: Extras::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Swarm {
        Swarm { weights: [4; OPTIONAL], more: [4; MORE], traits: 0xff, max_prompt: 20, max_tokens: 4, ids: 12 }
    }

    #[test]
    fn zero_bytes_are_the_simplest_operation() {
        assert_eq!(Op::decode(&[0; GENE], &everything()), Ok(Op::Schedule));
        assert_eq!(Op::decode(&[], &everything()), Ok(Op::Schedule));
    }

    #[test]
    fn every_kind_can_be_decoded() {
        let mut kinds = std::collections::BTreeSet::new();
        for first in 0..=255u8 {
            let op = Op::decode(&[first, 1, 2, 3, 4, 5], &everything()).unwrap();
            kinds.insert(format!("{op:?}").split(['(', ' ']).next().unwrap().to_owned());
        }
        assert_eq!(kinds.len(), 26, "{kinds:?}");
    }

    #[test]
    fn what_is_switched_off_does_not_come() {
        let swarm = Swarm { weights: [0; OPTIONAL], more: [0; MORE], ..everything() };
        for first in 0..=255u8 {
            let op = Op::decode(&[first], &swarm).unwrap();
            assert!(matches!(op, Op::Submit(_) | Op::Schedule | Op::Complete | Op::Fill), "{op:?}");
        }
    }
}
