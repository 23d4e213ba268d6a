//! What a request may wait for outside of the scheduler.

use core::fmt;

/// One thing that a request waits for, known by the caller alone. A request with a shut gate is not scheduled; it keeps its place in the order
/// (and its blocks, if it has any) and is in nobody's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[repr(u8)]
#[non_exhaustive]
pub enum Gate {
    /// Something that only the caller knows.
    Other = 1,
    /// Its grammar is being compiled.
    Grammar = 2,
    /// KV that is looked up or loaded elsewhere: an answer "later" of a remote prefix cache.
    Kv = 4,
    /// Input that the caller still waits for. The scheduler shuts no gate itself: a session between two inputs has none shut, and goes on with
    /// [`extend`](crate::Scheduler::extend).
    Input = 8,
    /// Its adapter is being loaded.
    Adapter = 16,
}

impl Gate {
    pub(crate) const ALL: [Self; 5] = [Self::Other, Self::Grammar, Self::Kv, Self::Input, Self::Adapter];
}

/// A set of gates.
///
/// ```
/// use cpp_sched::{Gate, GateSet};
/// let set = GateSet::NONE.with(Gate::Grammar).with(Gate::Adapter);
/// assert!(set.contains(Gate::Adapter));
/// assert_eq!(set.without(Gate::Adapter), GateSet::from(Gate::Grammar));
/// assert_eq!(format!("{set:?}"), "{Grammar, Adapter}");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct GateSet(u8);

/// As the sum of its gates' numbers; bits that are no gate's are refused, as nobody could open them.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for GateSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u8::deserialize(deserializer)?;
        let known = Gate::ALL.into_iter().fold(Self::NONE, Self::with);
        if bits & !known.0 == 0 {
            return Ok(Self(bits));
        }
        let (found, wanted) = (serde::de::Unexpected::Unsigned(bits.into()), "a set of gates: a sum of 1, 2, 4, 8 and 16");
        Err(serde::de::Error::invalid_value(found, &wanted))
    }
}

impl GateSet {
    /// No gate: nothing outside is waited for.
    pub const NONE: Self = Self(0);

    /// This set and one more gate.
    #[must_use]
    pub const fn with(self, gate: Gate) -> Self {
        Self(self.0 | gate as u8)
    }

    /// This set without one gate.
    #[must_use]
    pub const fn without(self, gate: Gate) -> Self {
        Self(self.0 & !(gate as u8))
    }

    /// Whether the gate is in the set.
    #[must_use]
    pub const fn contains(self, gate: Gate) -> bool {
        self.0 & gate as u8 != 0
    }

    /// Whether there is no gate in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The gates of the set, in a fixed order.
    pub fn iter(self) -> impl Iterator<Item = Gate> {
        Gate::ALL.into_iter().filter(move |&gate| self.contains(gate))
    }
}

/// The gates by name: `{Grammar, Adapter}`, and `{}` for none.
impl fmt::Debug for GateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl From<Gate> for GateSet {
    fn from(gate: Gate) -> Self {
        Self(gate as u8)
    }
}
