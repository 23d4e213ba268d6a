//! Operations on a scheduler as plain values, and their encoding in bytes.
//!
//! An operation is decoded from a *gene* of [`GENE`] bytes, always. So a list of operations shrinks well (a gene taken out does not shift its
//! neighbours), and what the fuzzer finds is a property test's input and the other way round. Zero bytes decode to the simplest operation.

use std::fmt;

use arbitrary::Unstructured;

/// Bytes that encode one operation.
pub const GENE: usize = 16;

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
        }
    }
}

/// Kinds of operations that a run may do without; see [`Swarm`].
const OPTIONAL: usize = 12;

/// Which kinds of operations a run knows, and how often each comes.
///
/// A run in which everything happens seldom gets anywhere: an abort here, a failure there, and no state ever grows old. Switching kinds off,
/// run by run, reaches states that no even mixture reaches (swarm testing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    weights: [u8; OPTIONAL],
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
            max_prompt: (pool_tokens * eighths / 8).clamp(1, 240),
            max_tokens: *pick(u, &[4, 1, 12, 60])?,
            ids: *pick(u, &[12, 4, 40])?,
        })
    }
}

/// One of `choices`; the first one for a zero byte.
pub(crate) fn pick<'c, T>(u: &mut Unstructured<'_>, choices: &'c [T]) -> arbitrary::Result<&'c T> {
    Ok(&choices[u.int_in_range(0..=choices.len() - 1)?])
}

impl Op {
    /// The id that it names, unless it is a submit.
    pub fn id_mut(&mut self) -> Option<&mut u64> {
        match self {
            Self::Abort(id) | Self::Ready(id) | Self::SetDrafts(id, _) => Some(id),
            Self::KvSent(id) | Self::KvSendFailed(id) | Self::KvArrived(id) | Self::KvFailed(id) => Some(id),
            _ => None,
        }
    }

    /// Reads one operation from a gene.
    ///
    /// # Errors
    /// Never with zero or more bytes left: missing bytes read as zero.
    pub fn decode(gene: &[u8], swarm: &Swarm) -> arbitrary::Result<Self> {
        let u = &mut Unstructured::new(gene);
        let fixed = [10, 8, 4, 6];
        let total = fixed.iter().chain(&swarm.weights).map(|w| u32::from(*w)).sum::<u32>();
        let mut at = u.int_in_range(0..=total - 1)?;
        let mut kind = 0;
        for weight in fixed.iter().chain(&swarm.weights) {
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
            3 => Self::Submit(Shape::decode(u, id, swarm)?),
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
            _ => Self::Submit(Shape::decode(u, id, swarm)?),
        })
    }
}

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
    fn decode(u: &mut Unstructured<'_>, id: u64, swarm: &Swarm) -> arbitrary::Result<Self> {
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Swarm {
        Swarm { weights: [4; OPTIONAL], max_prompt: 20, max_tokens: 4, ids: 12 }
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
        assert_eq!(kinds.len(), 15, "{kinds:?}");
    }

    #[test]
    fn what_is_switched_off_does_not_come() {
        let swarm = Swarm { weights: [0; OPTIONAL], ..everything() };
        for first in 0..=255u8 {
            let op = Op::decode(&[first], &swarm).unwrap();
            assert!(matches!(op, Op::Submit(_) | Op::Schedule | Op::Complete | Op::Fill), "{op:?}");
        }
    }
}
