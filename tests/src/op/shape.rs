//! What a request is like: decided by the generator, made a real one by the driver.

use std::fmt;

use arbitrary::Unstructured;
use cpp_sched::{Gate, GateSet, Span};

use super::{PLAIN, Swarm, pick};
use crate::truth::mix;

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
    /// Whether the prompt has spans, and which of its own; 0 = none.
    pub spans: u8,
    /// Target between two tokens.
    pub tbt_slo_ns: Option<u64>,
}

impl Extras {
    /// Which of them the bits of `traits` allow.
    pub(super) fn decode(bytes: &[u8], traits: u8, max_tokens: u32) -> arbitrary::Result<Self> {
        let u = &mut Unstructured::new(bytes);
        let none = GateSet::NONE;
        let two = none.with(Gate::Grammar).with(Gate::Kv);
        let gates = [none, none, none, Gate::Grammar.into(), Gate::Adapter.into(), Gate::Kv.into(), Gate::Input.into(), two];
        let gates = *pick(u, &gates)?;
        let (flags, least) = (u.arbitrary::<u8>()?, u.arbitrary::<u8>()?);
        let adapter = *pick(u, &[None, Some(1), Some(2), Some(3)])?;
        let spans = 1 + (flags.rotate_left(3) ^ least) % 250;
        let on = |bit: u8, holds: bool| traits & (1 << bit) != 0 && holds;
        Ok(Self {
            gates: if on(0, true) { gates } else { none },
            constrained: on(1, flags & 1 != 0),
            skip_cache_read: on(2, flags & 6 == 6),
            pooling: on(3, flags & 0x38 == 0x38),
            session: on(4, flags & 0x40 != 0),
            min_tokens: if on(5, true) { u32::from(least) % (max_tokens + 1) } else { 0 },
            adapter: adapter.filter(|_| on(6, true)),
            spans: if on(7, flags & 3 != 0) { spans } else { 0 },
            tbt_slo_ns: on(5, least >= 200).then_some(u64::from(least) * 3),
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
    /// Two spans that overlap.
    Spans,
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

    /// The spans of its prompt, of few contents: those that begin in what it shares with its family are the family's.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        if self.extras.spans == 0 {
            return Vec::new();
        }
        let (family, own) = (700 + u64::from(self.family), 800 + self.author + 1000 * u64::from(self.extras.spans));
        let mut spans = random_spans(self.len, |at| mix(if at < self.shared { family } else { own }, at.into()));
        if self.flaw == Some(Flaw::Spans) {
            spans.extend([Span::atomic(0, 1, [1; 16]), Span::atomic(0, 1, [1; 16])]);
        }
        spans
    }

    /// `gene` holds the extras at its end, so that what comes before may be of any length.
    pub(super) fn decode(u: &mut Unstructured<'_>, gene: &[u8], id: u64, swarm: &Swarm) -> arbitrary::Result<Self> {
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
                Some(*pick(u, &[Flaw::EmptyPrompt, Flaw::ZeroMaxTokens, Flaw::ZeroWeight, Flaw::BlockHashes, Flaw::Spans])?)
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

/// Spans in `len` positions, each drawn by where the one before it ends.
pub(crate) fn random_spans(len: u32, draw: impl Fn(u32) -> u64) -> Vec<Span> {
    let (mut at, mut spans) = (0, Vec::new());
    loop {
        let bits = draw(at);
        let part = |shift: u32, most: u64| ((bits >> shift) % most) as u32;
        let (start, tokens, content) = (at + part(0, 8), 1 + part(8, 5), part(16, 5));
        if start + tokens > len || spans.len() == 12 {
            return spans;
        }
        let mut span = Span::encoded(start, tokens, 1 + content % 4 + part(40, 8) / 7, [content as u8; 16]);
        span.atomic = part(24, 3) == 0;
        if part(32, 5) == 0 {
            span = Span::atomic(start, tokens, [9; 16]);
        }
        at = span.end();
        spans.push(span);
    }
}
