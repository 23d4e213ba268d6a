//! Orders over requests: an indexed heap ([`heap`]), a queue whose keys move with time ([`kinetic`]), the queue of prompt work made of them ([`prompt`]), and the ring of decodes ([`ready`]).

pub(crate) mod heap;
pub(crate) mod kinetic;
pub(crate) mod prompt;
pub(crate) mod ready;

pub(crate) use heap::IndexedHeap;
pub(crate) use prompt::{PromptQueue, compare};
pub(crate) use ready::{ReadyQueue, Ticket};
