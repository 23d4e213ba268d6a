//! What a batch costs in time: six coefficients, exact integers.
//!
//! One batch costs, on the slowest stage, `c0 + c1*X + c2*S + c3*K + c4*G + c5*n` with
//!
//! | term | meaning |
//! |---|---|
//! | `X` | all tokens of the batch |
//! | `S` | sum over prefill chunks of `x*L + x*(x+1)/2`: causal pairs of `x` new tokens after `L` computed ones |
//! | `K` | sum of `L` over the decodes |
//! | `G` | sum of `L` over the prefill chunks |
//! | `n` | number of decodes |
//!
//! Coefficients are kept in attoseconds (1e-9 ns), sums in 128 bits; a cost is rounded to nanoseconds once, at the end.
//!
//! Three refinements are off unless set: matrix products go in tiles of rows ([`CostModel::tile`]), reading a stage's weights takes its time
//! however few tokens there are ([`CostModel::linear_floor`]), and so does reading the keys and values of a chunk
//! ([`CostModel::prefill_read`]). Each is a floor of the roofline: the larger of computing and reading counts.

use core::fmt;
use core::str::FromStr;

/// A time in attoseconds, that is in 1e-9 ns: the unit in which costs are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Attos(#[cfg_attr(feature = "serde", serde(with = "crate::wide"))] pub u128);

impl Attos {
    /// Attoseconds in one nanosecond.
    pub const PER_NS: u128 = 1_000_000_000;
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The largest coefficient that a [`CostModel`] takes: 1e12 ns.
    pub const MAX_COEFFICIENT: Self = Self(1_000_000_000_000 * Self::PER_NS);

    /// A whole number of nanoseconds.
    ///
    /// ```
    /// use cpp_sched::Attos;
    /// assert_eq!(Attos::from_ns(3).to_ns(), 3);
    /// ```
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns as u128 * Self::PER_NS)
    }

    /// Rounded to the nearest nanosecond (halves up), saturating at `u64::MAX`.
    #[must_use]
    pub const fn to_ns(self) -> u64 {
        if self.0 <= (u64::MAX / 2) as u128 {
            // Nearly always: 64-bit division by a constant.
            return (self.0 as u64 + Self::PER_NS as u64 / 2) / Self::PER_NS as u64;
        }
        let ns = self.0 / Self::PER_NS + (self.0 % Self::PER_NS >= Self::PER_NS / 2) as u128;
        if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }
    }

    pub(crate) const fn times(self, n: u128) -> u128 {
        product(self.0, n)
    }
}

/// Why a text is not a number of nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseAttosError {
    /// Not a decimal number such as `12`, `0.25` or `1.5e3`, or negative.
    NotANumber,
    /// Larger than 1e20 ns, which no coefficient may be.
    TooLarge,
}

impl fmt::Display for ParseAttosError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotANumber => "not a decimal number of nanoseconds, 0 or more",
            Self::TooLarge => "more nanoseconds than a coefficient may be",
        })
    }
}

impl core::error::Error for ParseAttosError {}

/// Reads a decimal number of nanoseconds exactly to 1e-9 ns; further digits are rounded (halves up).
///
/// ```
/// use cpp_sched::Attos;
/// assert_eq!("0.25".parse(), Ok(Attos(250_000_000)));
/// assert_eq!("1.5e3".parse(), Ok(Attos::from_ns(1500)));
/// assert!("-1".parse::<Attos>().is_err());
/// ```
impl FromStr for Attos {
    type Err = ParseAttosError;

    fn from_str(text: &str) -> Result<Self, ParseAttosError> {
        use ParseAttosError::{NotANumber, TooLarge};
        let (mantissa, exponent) = match text.find(['e', 'E']) {
            Some(at) => (&text[..at], text[at + 1..].parse::<i32>().map_err(|_| NotANumber)?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let whole = whole.strip_prefix('+').unwrap_or(whole);
        if whole.is_empty() && fraction.is_empty() {
            return Err(NotANumber);
        }
        // The decimal point stands `point` digits after the first digit; digits further right than 1e-9 are only good for rounding.
        let point = i64::try_from(whole.len()).map_err(|_| TooLarge)? + i64::from(exponent);
        let (mut value, mut round_up, mut place) = (0u128, false, 0i64);
        for digit in whole.bytes().chain(fraction.bytes()) {
            if !digit.is_ascii_digit() {
                return Err(NotANumber);
            }
            let digit = u128::from(digit - b'0');
            if place < point + 9 {
                value = value.checked_mul(10).and_then(|v| v.checked_add(digit)).ok_or(TooLarge)?;
            } else if place == point + 9 {
                round_up = digit >= 5;
            }
            place += 1;
        }
        if value != 0 {
            for _ in place..point.saturating_add(9) {
                value = value.checked_mul(10).ok_or(TooLarge)?;
            }
        }
        value += u128::from(round_up);
        if value > 100_000_000_000_000_000_000 * Self::PER_NS { Err(TooLarge) } else { Ok(Self(value)) }
    }
}

/// The sums that a batch's cost is made of; see the module's table. Grows item by item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CostTerms {
    /// `X`: tokens.
    pub tokens: u64,
    /// `S`: causal pairs of the prefill chunks.
    #[cfg_attr(feature = "serde", serde(with = "crate::wide"))]
    pub pairs: u128,
    /// `K`: contexts of the decodes.
    pub decode_context: u64,
    /// `G`: histories of the prefill chunks.
    pub prefill_history: u64,
    /// `n`: decodes.
    pub decodes: u64,
}

impl CostTerms {
    /// The terms of a prefill chunk of `x` tokens after `history` computed ones.
    #[must_use]
    pub const fn prefill(history: u32, x: u32) -> Self {
        Self { tokens: x as u64, pairs: causal_pairs(history, x), decode_context: 0, prefill_history: history as u64, decodes: 0 }
    }

    /// The terms of a decode of `x` tokens (one, and its drafts) at context `history`.
    #[must_use]
    pub const fn decode(history: u32, x: u32) -> Self {
        Self { tokens: x as u64, pairs: 0, decode_context: history as u64, prefill_history: 0, decodes: 1 }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.pairs += other.pairs;
        self.decode_context += other.decode_context;
        self.prefill_history += other.prefill_history;
        self.decodes += other.decodes;
    }

    /// Both together, saturating: for sums that come from elsewhere.
    pub(crate) const fn plus(&self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            pairs: self.pairs.saturating_add(other.pairs),
            decode_context: self.decode_context.saturating_add(other.decode_context),
            prefill_history: self.prefill_history.saturating_add(other.prefill_history),
            decodes: self.decodes.saturating_add(other.decodes),
        }
    }

    pub(crate) fn sub(&mut self, other: Self) {
        self.tokens -= other.tokens;
        self.pairs -= other.pairs;
        self.decode_context -= other.decode_context;
        self.prefill_history -= other.prefill_history;
        self.decodes -= other.decodes;
    }
}

/// `x*L + x*(x+1)/2`: how many (query, key) pairs `x` new tokens make after `history` computed ones, causal mask, exactly.
///
/// Additive over any cutting of a prompt: `A(x1, L) + A(x2, L + x1) = A(x1 + x2, L)`.
#[must_use]
pub const fn causal_pairs(history: u32, x: u32) -> u128 {
    let (x, history) = (x as u128, history as u128);
    x * history + x * (x + 1) / 2
}

/// The coefficients of one stage (the slowest one rules), each in attoseconds; one batch costs `c0 + c1*X + c2*S + c3*K + c4*G + c5*n` (the terms are [`CostTerms`]).
///
/// ```
/// use cpp_sched::{Attos, CostModel, CostTerms};
/// let mut model = CostModel::default();
/// model.c0 = Attos::from_ns(1000);
/// model.c1 = Attos::from_ns(10);
/// assert_eq!(model.cost(&CostTerms::prefill(0, 100)).to_ns(), 2000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CostModel {
    /// Per batch.
    pub c0: Attos,
    /// Per token.
    pub c1: Attos,
    /// Per causal pair of a prefill chunk.
    pub c2: Attos,
    /// Per token of a decode's context.
    pub c3: Attos,
    /// Per token of a prefill chunk's history.
    pub c4: Attos,
    /// Per decode.
    pub c5: Attos,
    /// Tokens of a batch are rounded up to a multiple of this many before `c1` counts them. 0 and 1: they are not.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tile: u32,
    /// The linear layers of a batch (`c1 * X`) take at least this long: reading their weights.
    #[cfg_attr(feature = "serde", serde(default))]
    pub linear_floor: Attos,
    /// The attention of the prefill chunks (`c2 * S`) takes at least this long per token of their histories and of their own: reading keys and
    /// values.
    #[cfg_attr(feature = "serde", serde(default))]
    pub prefill_read: Attos,
}

impl CostModel {
    /// The cost of a batch with these terms, saturating. O(1).
    #[must_use]
    pub const fn cost(&self, terms: &CostTerms) -> Attos {
        let items = if self.is_linear() { self.items(terms).0 } else { self.roofline(terms) };
        Attos(self.c0.0.saturating_add(items))
    }

    /// Whether the six coefficients are all there is: no tile, no floor.
    #[must_use]
    pub const fn is_linear(&self) -> bool {
        self.tile <= 1 && self.linear_floor.0 == 0 && self.prefill_read.0 == 0
    }

    const fn roofline(&self, t: &CostTerms) -> u128 {
        let tokens =
            if self.tile > 1 { t.tokens.saturating_add(self.tile as u64 - 1) / self.tile as u64 * self.tile as u64 } else { t.tokens };
        let linear = larger(self.c1.times(tokens as u128), if t.tokens > 0 { self.linear_floor.0 } else { 0 });
        let read = self.prefill_read.times(t.prefill_history as u128 + t.tokens.saturating_sub(t.decodes) as u128);
        let attention = if t.pairs > 0 { larger(self.c2.times(t.pairs), read) } else { 0 };
        linear
            .saturating_add(attention)
            .saturating_add(self.c3.times(t.decode_context as u128))
            .saturating_add(self.c4.times(t.prefill_history as u128))
            .saturating_add(self.c5.times(t.decodes as u128))
    }

    /// The six-coefficient cost of the items alone, without `c0`, tile and floors: what an item adds to a batch of any size.
    #[must_use]
    pub const fn items(&self, t: &CostTerms) -> Attos {
        Attos(
            self.c1
                .times(t.tokens as u128)
                .saturating_add(self.c2.times(t.pairs))
                .saturating_add(self.c3.times(t.decode_context as u128))
                .saturating_add(self.c4.times(t.prefill_history as u128))
                .saturating_add(self.c5.times(t.decodes as u128)),
        )
    }

    /// The model whose nanoseconds are the FLOPs of these dimensions: with it targets, balance and policies count FLOPs in place of time.
    /// Exact but for drafts, which a decode's pairs leave out.
    #[must_use]
    pub const fn of_flops(dims: &crate::ModelDims) -> Self {
        let per_pair = Attos(dims.flops_per_pair().saturating_mul(Attos::PER_NS));
        let per_token = Attos(dims.weights().saturating_mul(2 * Attos::PER_NS));
        Self {
            c0: Attos::ZERO,
            c1: per_token,
            c2: per_pair,
            c3: per_pair,
            c4: Attos::ZERO,
            c5: per_pair,
            tile: 0,
            linear_floor: Attos::ZERO,
            prefill_read: Attos::ZERO,
        }
    }

    /// With every coefficient and floor cut to [`Attos::MAX_COEFFICIENT`].
    pub(crate) fn bounded(self) -> Self {
        let cut = |coefficient: Attos| coefficient.min(Attos::MAX_COEFFICIENT);
        Self {
            c0: cut(self.c0),
            c1: cut(self.c1),
            c2: cut(self.c2),
            c3: cut(self.c3),
            c4: cut(self.c4),
            c5: cut(self.c5),
            tile: self.tile,
            linear_floor: cut(self.linear_floor),
            prefill_read: cut(self.prefill_read),
        }
    }

    /// The coefficients in order, with their names.
    #[must_use]
    pub const fn coefficients(&self) -> [(&'static str, Attos); 6] {
        [("c0", self.c0), ("c1", self.c1), ("c2", self.c2), ("c3", self.c3), ("c4", self.c4), ("c5", self.c5)]
    }
}

/// The product, saturating. Nearly always both fit into 64 bits, where it is a single instruction.
pub(crate) const fn product(a: u128, b: u128) -> u128 {
    if (a | b) >> 64 == 0 { a as u64 as u128 * b as u64 as u128 } else { a.saturating_mul(b) }
}

const fn larger(a: u128, b: u128) -> u128 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_to_an_attosecond() {
        for (text, attos) in [
            ("0", 0),
            ("1", 1_000_000_000),
            ("0.000000001", 1),
            ("0.0000000005", 1),
            ("0.0000000004", 0),
            (".5", 500_000_000),
            ("5.", 5_000_000_000),
            ("1e12", 1_000_000_000_000_000_000_000),
            ("25e-2", 250_000_000),
            ("0.000001e6", 1_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Attos(attos)), "{text}");
        }
        for text in ["", ".", "-1", "1.2.3", "x", "1e", "e5", "0x10", "nan", "1e999999"] {
            assert!(text.parse::<Attos>().is_err(), "{text}");
        }
        assert_eq!("0e999999999".parse(), Ok(Attos(0)));
    }

    #[test]
    fn pairs_are_additive_over_any_cut() {
        for (history, a, b) in [(0, 1, 1), (7, 3, 5), (9_999_000, 512, 488), (0, 10_000_000, 1)] {
            assert_eq!(causal_pairs(history, a) + causal_pairs(history + a, b), causal_pairs(history, a + b));
        }
    }

    #[test]
    fn ten_million_token_contexts_do_not_overflow() {
        let c = Attos::MAX_COEFFICIENT;
        let model = CostModel { c0: c, c1: c, c2: c, c3: c, c4: c, c5: c, ..CostModel::default() };
        let terms = CostTerms::prefill(0, 10_000_000);
        let exact = c.0 + c.0 * 10_000_000 + c.0 * (10_000_000u128 * 10_000_001 / 2);
        assert_eq!(model.cost(&terms), Attos(exact));
    }

    #[test]
    fn tiles_round_tokens_up_and_floors_hold() {
        let ns = Attos::from_ns;
        let model = CostModel { c1: ns(1), tile: 64, ..CostModel::default() };
        assert_eq!([1, 64, 65].map(|x| model.cost(&CostTerms::prefill(0, x)).to_ns()), [64, 64, 128]);
        let model = CostModel { c1: ns(1), c2: ns(1), linear_floor: ns(100), prefill_read: ns(3), ..CostModel::default() };
        assert_eq!(model.cost(&CostTerms::prefill(0, 2)).to_ns(), 100 + 6);
        assert_eq!(model.cost(&CostTerms::prefill(0, 200)).to_ns(), 200 + 20_100);
        assert_eq!(model.cost(&CostTerms::prefill(500, 1)).to_ns(), 100 + 3 * 501);
        assert_eq!(model.cost(&CostTerms::decode(500, 1)).to_ns(), 100);
        assert_eq!(model.cost(&CostTerms::default()).to_ns(), 0);
    }

    #[test]
    fn flops_as_the_unit_agree_with_the_dimensions() {
        let dims = crate::ModelDims::new(80, 8192, 64, 8, 128, 28672);
        let model = CostModel::of_flops(&dims);
        for (history, x) in [(0, 2048), (131_072, 64), (9_999_000, 1000)] {
            assert_eq!(u128::from(model.cost(&CostTerms::prefill(history, x)).to_ns()), dims.flops(history, x));
        }
        assert_eq!(u128::from(model.cost(&CostTerms::decode(5000, 1)).to_ns()), dims.flops(5000, 1));
    }
}
