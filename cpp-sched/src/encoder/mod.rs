//! Inputs that an encoder turns into embeddings (images, audio, video): where they stand in a prompt ([`span`]), and which of them are encoded
//! ([`cache`]). When they are encoded is decided in `scheduler/encode.rs`.

pub(crate) mod cache;
pub(crate) mod span;

pub(crate) use cache::EncoderCache;
pub use span::{EncoderInput, EncoderItem, Span};
