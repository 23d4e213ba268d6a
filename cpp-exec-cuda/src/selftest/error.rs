//! Why a selftest cannot go on.

use std::fmt;

use cudarc::driver::DriverError;

use crate::cuda::CudaError;

/// Why a selftest cannot go on. What is measured and found wrong is no error.
#[derive(Debug)]
#[non_exhaustive]
pub enum SelftestError {
    /// The driver refused something.
    Driver(DriverError),
    /// A stage did.
    Stage(CudaError),
    /// A kernel is not in the module.
    NoKernel(String),
    /// Something else that the test itself needs.
    Other(String),
}

impl fmt::Display for SelftestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(error) => write!(f, "the CUDA driver says {error}"),
            Self::Stage(error) => error.fmt(f),
            Self::NoKernel(name) => write!(f, "there is no kernel {name}"),
            Self::Other(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for SelftestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Driver(error) => Some(error),
            Self::Stage(error) => Some(error),
            Self::NoKernel(_) | Self::Other(_) => None,
        }
    }
}

impl From<DriverError> for SelftestError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<CudaError> for SelftestError {
    fn from(error: CudaError) -> Self {
        Self::Stage(error)
    }
}
