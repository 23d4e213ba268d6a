//! Operations on a scheduler as plain values, and their encoding in bytes.
//!
//! An operation is decoded from a *gene* of [`GENE`] bytes, always. So a list of operations shrinks well (a gene taken out does not shift its
//! neighbours), and what the fuzzer finds is a property test's input and the other way round. Zero bytes decode to the simplest operation.

mod knob;
mod shape;
mod swarm;

use std::fmt;

use arbitrary::Unstructured;
use cpp_sched::{Gate, Pause};

pub use self::knob::Knob;
pub(crate) use self::shape::random_spans;
pub use self::shape::{Extras, Flaw, Shape};
pub use self::swarm::Swarm;

/// Bytes that encode one operation.
pub const GENE: usize = 20;

/// Bytes of a gene before those of [`Extras`].
const PLAIN: usize = 16;

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
        /// Which session; where this is none, mostly another one.
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
        /// Whose prompt; where it is not computed, mostly another one's.
        parent: u64,
        /// The new one; its prompt is the parent's.
        child: Shape,
    },
    /// One of several consumers has read everything.
    KvSentBy(u64, u32),
    /// Let the clock run on for so long.
    Pass(u64),
    /// Other prices: one model for all stages, one for each, or a number that does not fit; and the seed that they are drawn from.
    SetCosts(u32, u64),
    /// The process dies. Another one goes on from the last snapshot and the journal since.
    Kill,
    /// The journal begins anew from a snapshot.
    Rotate,
    /// A worker joins late; with `true` the leader is a new one too.
    Join(bool),
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
            Self::SetCosts(models, seed) => write!(f, "SetCosts({models}, {seed})"),
            Self::Kill => f.write_str("Kill"),
            Self::Rotate => f.write_str("Rotate"),
            Self::Join(leader) => write!(f, "Join({leader})"),
        }
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
                | Self::SetCosts(..)
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
            27 => Self::SetCosts(u.int_in_range(0..=7)?, u.arbitrary::<u8>()?.into()),
            28 => Self::Kill,
            29 => Self::Rotate,
            30 => Self::Join(u.arbitrary::<u8>()? >= 192),
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

#[cfg(test)]
mod tests {
    use super::swarm::{MORE, OPTIONAL};
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
        assert_eq!(kinds.len(), 30, "{kinds:?}");
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
