//! CUDA: a device of the stage runtime, its libraries, and its kernels as machine code for the GPU at hand.
//!
//! Nothing is linked: a build needs no CUDA, and a machine without it gets an error that says what was looked for and where
//! ([`MissingLibrary`]), never a panic. At start [`Kernels::for_arch`] takes machine code from a [cache](KernelCache) or has NVRTC compile it for the
//! device's own architecture: not PTX, which a driver older than NVRTC would refuse.
//!
//! [`Layout`] is a batch as the kernels read it: what the host computes and checks before it launches anything. [`CudaStage`] runs it.

mod blas;
mod cache;
mod compile;
mod edge;
mod error;
mod gpu;
mod graphs;
mod in_process;
mod layers;
mod layout;
mod library;
mod lists;
mod numbers;
pub(crate) mod planted;
mod sample;
mod slot;
mod source;
mod stage;
mod stream;
mod survey;
mod weights;

pub(crate) use blas::{Blas, Output, Product};
pub use cache::{CacheError, KernelCache};
pub use compile::{Arch, CompileError, Compiler, Kernels, Origin};
pub use edge::{DeviceAddress, EdgeEnd, EdgeError, Progress, RawStream, ReceiveEnd, SendEnd};
pub use error::CudaError;
pub use gpu::Gpu;
pub use in_process::InProcessEdge;
pub use layout::{Layout, LayoutError, LayoutLimits, Merge, Row, Split, Tile};
pub use library::{CudaLibrary, MissingLibrary, load_library, standard_folders};
#[cfg(feature = "planted-faults")]
pub use planted::plant_fault;
pub use source::KERNELS;
pub use stage::{CudaStage, Ends, Room};
pub use survey::{GpuInfo, Survey};
pub use weights::WeightSource;
