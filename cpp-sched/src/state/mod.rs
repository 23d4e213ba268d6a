//! What the kernel knows of each request: [`slot`] holds one, [`slots`] all, with the map from ids.

pub(crate) mod slot;
pub(crate) mod slots;

pub(crate) use slot::{Chain, Cold, Demand, Rare, Slot, State, Trait, next_epoch};
pub(crate) use slots::{IdHasher, Slots, Tables, grow};
