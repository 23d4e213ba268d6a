//! What the kernel knows of each request: [`slot`] holds one, [`slots`] all, with the map from ids.

pub(crate) mod slot;
pub(crate) mod slots;

pub(crate) use slot::{Cold, Demand, Slot, State, next_epoch};
pub(crate) use slots::{IdHasher, Slots, Tables};
