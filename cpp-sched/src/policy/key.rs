//! What requests are compared by, and the keys of the policies that are shipped.

use core::cmp::Ordering;

use super::RequestView;
use crate::config::{Config, PolicyKind};

/// Times and costs that keys are made of stay below this (146 years), so that products of two of them cannot overflow.
const MOST: u64 = 1 << 62;

/// What comes before a policy's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Class {
    /// In its turn.
    #[default]
    Normal,
    /// Relegated: behind everybody who can be on time, but may come back.
    Relegated,
    /// Relegated, and too late even if it were alone.
    Hopeless,
    /// Its policy said "not now"; the number is the time until which.
    Deferred,
}

/// What requests are compared by: the class, the policy's number, then the order of submission.
///
/// The number is `value`, or with a `per` above 0 it falls as time goes by: `(value - now) / per`. Such keys are compared exactly, as fractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Key {
    pub(crate) class: Class,
    #[cfg_attr(feature = "serde", serde(with = "crate::wide"))]
    value: i128,
    per: u64,
    seq: u64,
}

impl Key {
    /// One that does not move.
    pub(crate) const fn fixed(value: i128, seq: u64) -> Self {
        Self { class: Class::Normal, value, per: 0, seq }
    }

    /// `(zero_ns - now) / per`.
    pub(crate) fn falling(zero_ns: i128, per: u64, seq: u64) -> Self {
        let most = i128::from(MOST);
        Self { class: Class::Normal, value: zero_ns.clamp(-most, most), per: per.clamp(1, MOST), seq }
    }

    /// Behind everybody until then.
    pub(crate) fn deferred(until_ns: u64, seq: u64) -> Self {
        Self { class: Class::Deferred, value: i128::from(until_ns), per: 0, seq }
    }

    pub(crate) const fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Until when it is deferred.
    pub(crate) fn deferred_until_ns(&self) -> Option<u64> {
        if self.class == Class::Deferred { u64::try_from(self.value).ok() } else { None }
    }

    /// Whether a stored key is one that could have been made, for this request.
    #[cfg(feature = "serde")]
    pub(crate) fn is_sane(&self, seq: u64) -> bool {
        let most = i128::from(MOST);
        self.seq == seq && (self.per == 0 || (self.per <= MOST && (-most..=most).contains(&self.value)))
    }

    /// How the two are ordered at a time.
    pub(crate) fn compare(&self, other: &Self, now_ns: u64) -> Ordering {
        let now = i128::from(now_ns.min(MOST));
        let by_value = || match (self.per, other.per) {
            (0, 0) => self.value.cmp(&other.value),
            // A product that saturates is larger than any distance in time.
            (0, per) => self.value.saturating_mul(per.into()).cmp(&(other.value - now)),
            (per, 0) => (self.value - now).cmp(&other.value.saturating_mul(per.into())),
            (a, b) => ((self.value - now) * i128::from(b)).cmp(&((other.value - now) * i128::from(a))),
        };
        self.class.cmp(&other.class).then_with(by_value).then_with(|| self.seq.cmp(&other.seq))
    }

    /// The first time after `now_ns` at which it comes before `first`, which comes before it until then; `u64::MAX`: never.
    pub(crate) fn overtakes(&self, first: &Self, now_ns: u64) -> u64 {
        if self.class != first.class || self.per == 0 || (first.per != 0 && self.per >= first.per) {
            return u64::MAX;
        }
        // It falls faster. At `num / den` the two are equal.
        let (num, den) = match first.per {
            0 => (self.value.saturating_sub(first.value.saturating_mul(self.per.into())), 1),
            per => (self.value * i128::from(per) - first.value * i128::from(self.per), i128::from(per - self.per)),
        };
        let floor = num.div_euclid(den);
        let at_once = num.rem_euclid(den) == 0 && self.seq < first.seq;
        let time = if at_once { floor } else { floor.saturating_add(1) };
        // Behind the end of time no key moves.
        if time > i128::from(MOST) { u64::MAX } else { u64::try_from(time).unwrap_or(0).max(now_ns.saturating_add(1)) }
    }
}

/// A [`Key`] that does not move, in half the memory: heaps hold one for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedKey {
    /// The halves of the value.
    high: i64,
    low: u64,
    /// The class in the upper two bits, and the order of submission.
    rest: u64,
}

/// Where the class is in `FixedKey::rest`.
const CLASS: u32 = 62;

impl From<Key> for FixedKey {
    fn from(key: Key) -> Self {
        debug_assert!(key.per == 0 && key.seq < 1 << CLASS);
        Self { high: (key.value >> 64) as i64, low: key.value as u64, rest: (key.class as u64) << CLASS | key.seq }
    }
}

impl From<FixedKey> for Key {
    fn from(key: FixedKey) -> Self {
        let class = match key.rest >> CLASS {
            0 => Class::Normal,
            1 => Class::Relegated,
            2 => Class::Hopeless,
            _ => Class::Deferred,
        };
        let value = i128::from(key.high) << 64 | i128::from(key.low);
        Self { class, value, per: 0, seq: key.rest & ((1 << CLASS) - 1) }
    }
}

impl Ord for FixedKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = |key: &Self| (key.rest >> CLASS, key.high, key.low, key.rest);
        order(self).cmp(&order(other))
    }
}

impl PartialOrd for FixedKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As it is for keys that do not move: see [`compare`](Key::compare).
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare(other, 0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The key of a request under a policy that is shipped; [`PolicyKind::Custom`] has none of its own. O(1).
pub(crate) fn key(config: &Config, view: &RequestView) -> Key {
    let last = i128::MAX;
    let value = match config.policy {
        // Tenants are ordered by what they were served (see `fair`), their requests as submitted.
        PolicyKind::Fcfs | PolicyKind::Fair | PolicyKind::Custom => 0,
        // All keys fall alike as time goes by, so their order is that of the times at which they would be 0.
        PolicyKind::Priority => match config.priority_ageing_ns {
            Some(ageing) => i128::from(view.priority) * i128::from(ageing) + i128::from(view.arrival_ns),
            None => i128::from(view.priority),
        },
        PolicyKind::Edf => view.deadline_ns.map_or(last, i128::from),
        PolicyKind::Srpf => match config.srpf_ageing_ns {
            Some(ageing) => i128::from(view.prompt_left) * i128::from(ageing) + i128::from(view.arrival_ns),
            None => i128::from(view.prompt_left),
        },
        PolicyKind::Hybrid => view
            .deadline_ns
            .map_or(last, |deadline| i128::from(deadline) + i128::from(config.hybrid_alpha_ns) * i128::from(view.prompt_left)),
        PolicyKind::Lars => match view.deadline_ns {
            Some(deadline) => return Key::falling(i128::from(deadline) - i128::from(view.work_left), view.work_total, view.seq),
            None => last,
        },
    };
    Key::fixed(value, view.seq)
}

/// Whether a request's key never changes, so that it can also say who is the least urgent. The other policies take the latest submitted as
/// victim: a fixed order, so that requests cannot take turns for ever.
pub(crate) const fn is_fixed(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Fcfs | PolicyKind::Priority | PolicyKind::Edf)
}

/// Whether keys may move with time.
pub(crate) const fn moves_with_time(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Lars | PolicyKind::Custom)
}

/// The order of victims: the largest goes first.
pub(crate) fn victim_key(config: &Config, view: &RequestView) -> Key {
    if is_fixed(config.policy) { key(config, view) } else { Key::fixed(0, view.seq) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_overtakes_comes_first_from_that_time_on_and_not_before() {
        let mut state = 7u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let mut crossings = 0;
        for round in 0..20_000u64 {
            let mut key = |seq| match draw(4) {
                0 => Key::fixed(i128::from(draw(40)) - 20, seq),
                _ => Key::falling(i128::from(draw(200)) - 50, draw(9) + 1, seq),
            };
            let (a, b) = (key(round % 2), key((round + 1) % 2));
            let now = draw(100);
            let (first, second) = if a.compare(&b, now).is_lt() { (a, b) } else { (b, a) };
            let time = second.overtakes(&first, now);
            if time < 100_000 {
                crossings += 1;
                assert!(first.compare(&second, time - 1).is_lt(), "{first:?} {second:?} {now} {time}");
                assert!(second.compare(&first, time).is_lt(), "{first:?} {second:?} {now} {time}");
            } else {
                assert!(first.compare(&second, now + 1_000_000).is_lt(), "{first:?} {second:?} {now} {time}");
            }
        }
        assert!(crossings > 1000, "{crossings}");
    }

    #[test]
    fn keys_in_little_memory_are_ordered_alike_and_come_back_as_they_were() {
        let classes = [Class::Normal, Class::Relegated, Class::Hopeless, Class::Deferred];
        let values = [i128::MIN, -(1 << 64), -1, 0, 1, 1 << 63, u64::MAX.into(), 1 << 64, i128::MAX];
        let seqs = [0, 1, (1 << CLASS) - 1];
        let all = classes.iter().flat_map(|&class| values.iter().map(move |&value| (class, value)));
        let keys: alloc::vec::Vec<_> = all.flat_map(|(class, value)| seqs.map(|seq| Key::fixed(value, seq).with_class(class))).collect();
        for a in &keys {
            assert_eq!(Key::from(FixedKey::from(*a)), *a);
            for b in &keys {
                assert_eq!(FixedKey::from(*a).cmp(&FixedKey::from(*b)), a.cmp(b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn keys_at_the_ends_of_their_range_neither_overflow_nor_lose_their_order() {
        let ends = [i128::MIN, -1, 0, 1, i128::MAX];
        let pers = [1, 2, u64::MAX];
        let fixed = ends.iter().map(|&value| Key::fixed(value, 1));
        let keys: alloc::vec::Vec<_> = fixed.chain(ends.iter().flat_map(|&zero| pers.map(|per| Key::falling(zero, per, 2)))).collect();
        for now in [0, 1, MOST, u64::MAX] {
            for a in &keys {
                for b in &keys {
                    assert_eq!(a.compare(b, now), b.compare(a, now).reverse());
                    let _ = a.overtakes(b, now);
                    for c in &keys {
                        assert!(!(a.compare(b, now).is_lt() && b.compare(c, now).is_lt()) || a.compare(c, now).is_lt());
                    }
                }
            }
        }
    }
}
