//! A device that is this machine's processor: the layers of a Llama model in single precision, over paged keys and values.
//!
//! Everything is summed in one order, whatever else is in a batch: a product over its inputs from the first to the last, attention over the
//! positions from the first to the last. So a prompt in chunks gives, bit for bit, what it gives as a whole, and a token does not depend on what
//! it was batched with; and since only basic operations of IEEE arithmetic and `libm` in software are used, neither does it on the machine.
//!
//! Weights in bf16 stay so in memory and are widened when they are used, which is exact.
//!
//! With [`Rounding::Bf16AtOpBorders`] it rounds where kernels for GPUs round, so that one can be held against the other: [`TeacherForced`] does,
//! token by token.

mod matrix;
mod memory;
mod rounding;
mod sampling;
mod stage;
mod teacher;

pub use matrix::Matrix;
pub use rounding::Rounding;
pub use sampling::Sampling;
pub use stage::{CpuError, CpuStage, KvShape, Part};
pub use teacher::{Said, TeacherForced};
