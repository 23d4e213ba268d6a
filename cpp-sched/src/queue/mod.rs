//! Orders over requests: an indexed heap ([`heap`]) and the queue of prompt work made of it ([`prompt`]).

pub(crate) mod heap;
pub(crate) mod prompt;

pub(crate) use heap::IndexedHeap;
pub(crate) use prompt::PromptQueue;
