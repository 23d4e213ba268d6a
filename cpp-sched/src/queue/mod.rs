//! Orders over requests: an indexed heap ([`heap`]), the queue of prompt work made of it ([`prompt`]), and the ring of decodes ([`ready`]).

pub(crate) mod heap;
pub(crate) mod prompt;
pub(crate) mod ready;

pub(crate) use heap::IndexedHeap;
pub(crate) use prompt::PromptQueue;
pub(crate) use ready::{ReadyQueue, Ticket};
