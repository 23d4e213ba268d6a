//! Why a CUDA device cannot be made, or a batch cannot be run.

use std::fmt;
use std::time::Duration;

use cpp_exec_mock::model::ModelError;
use cudarc::cublas::result::CublasError;
use cudarc::driver::DriverError;

use super::compile::CompileError;
use super::edge::EdgeError;
use super::layout::LayoutError;
use super::library::MissingLibrary;

/// Why a CUDA device cannot be made, or a batch cannot be run.
#[derive(Debug)]
#[non_exhaustive]
pub enum CudaError {
    /// A library is not on this machine.
    Missing(MissingLibrary),
    /// The driver is older than what has compiled the kernels.
    OldDriver {
        /// The driver's version of CUDA.
        driver: (i32, i32),
        /// NVRTC's.
        nvrtc: (i32, i32),
    },
    /// There is no machine code of the kernels.
    Compile(CompileError),
    /// The driver refused something. After a failed kernel the device is of no more use to this process.
    Driver {
        /// What was being done.
        doing: &'static str,
        /// The driver's word.
        error: DriverError,
    },
    /// cuBLAS refused something.
    Blas {
        /// What was being done.
        doing: &'static str,
        /// cuBLAS's word.
        error: CublasError,
    },
    /// The model has a size that the kernels do not take.
    Shape {
        /// Which.
        what: &'static str,
        /// What it is.
        found: usize,
        /// What it must be.
        rule: &'static str,
    },
    /// The model's files.
    Model(ModelError),
    /// The batch does not fit: whoever made it is wrong. No key or value was written.
    Layout(LayoutError),
    /// The stage before has put out activations of another number of tokens than the batch has.
    Input {
        /// Numbers that there must be.
        expected: usize,
        /// Numbers that there are.
        found: usize,
    },
    /// What carries activations between stages has failed.
    Edge(EdgeError),
    /// What is on the streams does not come to an end.
    Stuck {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The driver has captured nothing.
    NoGraph,
    /// A variable is set with which stages would wait for each other for ever.
    Environment {
        /// Which.
        variable: &'static str,
        /// What to do.
        hint: &'static str,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::OldDriver { driver, nvrtc } => write!(
                f,
                "the driver is for CUDA {}.{} and NVRTC is {}.{}: install a newer driver, or an older NVRTC",
                driver.0, driver.1, nvrtc.0, nvrtc.1
            ),
            Self::Compile(error) => error.fmt(f),
            Self::Driver { doing, error } => write!(f, "{doing}: the CUDA driver says {error}"),
            Self::Blas { doing, error } => write!(f, "{doing}: cuBLAS says {error}"),
            Self::Shape { what, found, rule } => write!(f, "the model's {what} is {found}: kernels need {rule}; --device cpu takes any"),
            Self::Model(error) => error.fmt(f),
            Self::Layout(error) => error.fmt(f),
            Self::Edge(error) => error.fmt(f),
            Self::Stuck { waited } => write!(f, "what is under way on the device has not come to an end in {} s", waited.as_secs()),
            Self::NoGraph => f.write_str("capturing a graph: the CUDA driver has captured nothing"),
            Self::Environment { variable, hint } => write!(f, "{variable} is set, and stages would wait for each other for ever: {hint}"),
            Self::Input { expected, found } => write!(f, "{found} numbers came from the stage before, the batch needs {expected}"),
        }
    }
}

impl std::error::Error for CudaError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Missing(error) => Some(error),
            Self::Compile(error) => Some(error),
            Self::Driver { error, .. } => Some(error),
            Self::Blas { error, .. } => Some(error),
            Self::Model(error) => Some(error),
            Self::Layout(error) => Some(error),
            Self::Edge(error) => Some(error),
            Self::OldDriver { .. }
            | Self::Shape { .. }
            | Self::Input { .. }
            | Self::Stuck { .. }
            | Self::NoGraph
            | Self::Environment { .. } => None,
        }
    }
}

impl From<MissingLibrary> for CudaError {
    fn from(missing: MissingLibrary) -> Self {
        Self::Missing(missing)
    }
}

impl From<CompileError> for CudaError {
    fn from(error: CompileError) -> Self {
        Self::Compile(error)
    }
}

impl From<ModelError> for CudaError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<EdgeError> for CudaError {
    fn from(error: EdgeError) -> Self {
        Self::Edge(error)
    }
}

impl From<LayoutError> for CudaError {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}

/// Says what was being done when the driver refused.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, doing: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| CudaError::Driver { doing, error })
    }
}

impl<T> Doing<T> for Result<T, CublasError> {
    fn doing(self, doing: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| CudaError::Blas { doing, error })
    }
}
