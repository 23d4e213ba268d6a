//! What can go wrong, with names.

use std::error::Error;
use std::ffi::c_int;
use std::fmt;

/// NCCL cannot be loaded. `CPP_NCCL_LIB` names its file where it is not found by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// No file of that name is there, or none can be loaded.
    NotFound {
        /// Names that were tried, and what the system says to each.
        tried: Vec<(String, String)>,
    },
    /// A library was loaded that is no NCCL, or too old a one.
    NoSymbol {
        /// Its name.
        library: String,
        /// The function that it lacks.
        symbol: &'static str,
    },
    /// NCCL before 2.19: while it connects without blocking it keeps the address of the caller's handle, which need not live that long.
    TooOld {
        /// The library's name.
        library: String,
        /// Its version: major, minor, patch.
        version: (i32, i32, i32),
    },
    /// It does not say which version it is.
    NoVersion {
        /// The library's name.
        library: String,
        /// What it says instead.
        error: NcclError,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried } => {
                let tried: Vec<String> = tried.iter().map(|(name, problem)| format!("{name} ({problem})")).collect();
                let list = tried.join(", ");
                write!(f, "NCCL is not on this machine: tried {list}; pip install nvidia-nccl-cu13, or name the file in CPP_NCCL_LIB")
            }
            Self::NoSymbol { library, symbol } => write!(f, "{library} has no {symbol}: it is no NCCL of version 2.19 or later"),
            Self::TooOld { library, version: (major, minor, patch) } => write!(
                f,
                "{library} is NCCL {major}.{minor}.{patch}, and 2.19 or later is needed: pip install nvidia-nccl-cu13, or name another file in CPP_NCCL_LIB"
            ),
            Self::NoVersion { library, error } => write!(f, "{library} does not say its version: {error}"),
        }
    }
}

impl Error for LoadError {}

/// What the loader says; libloading keeps it in the source of its error.
pub(crate) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// NCCL's results: `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NcclCode {
    /// A call of CUDA failed.
    Cuda,
    /// A call of the operating system failed.
    System,
    /// A fault within NCCL.
    Internal,
    /// An argument that cannot be: a fault of the caller.
    Argument,
    /// A call that is not allowed here: a fault of the caller.
    Usage,
    /// The peer, or the network to it, is gone.
    Remote,
    /// A number that this crate does not know.
    Other(i32),
}

impl NcclCode {
    /// `None`: it is through; `Some(None)`: it goes on.
    pub(super) const fn of(result: c_int) -> Option<Option<Self>> {
        Some(match result {
            0 => return None,
            1 => Some(Self::Cuda),
            2 => Some(Self::System),
            3 => Some(Self::Internal),
            4 => Some(Self::Argument),
            5 => Some(Self::Usage),
            6 => Some(Self::Remote),
            7 => None,
            other => Some(Self::Other(other)),
        })
    }

    /// Whether a new communicator may help: nobody has called anything wrongly.
    #[must_use]
    pub const fn is_worth_another_try(self) -> bool {
        matches!(self, Self::System | Self::Remote)
    }
}

/// A call of NCCL failed, at once or behind the scenes. The communicator is of no more use: abort it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclError {
    /// The function, or that whose operation failed.
    pub call: &'static str,
    /// What NCCL says.
    pub code: NcclCode,
    /// The same in its words.
    pub text: String,
    /// The last thing that it has noted; may be empty.
    pub detail: String,
}

impl fmt::Display for NcclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call, self.text)?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " ({})", self.detail) }
    }
}

impl Error for NcclError {}

#[cfg(test)]
mod tests {
    use super::{LoadError, NcclCode, NcclError};

    #[test]
    fn results_have_names() {
        assert_eq!(NcclCode::of(0), None);
        assert_eq!(NcclCode::of(7), Some(None));
        assert_eq!(NcclCode::of(6), Some(Some(NcclCode::Remote)));
        assert_eq!(NcclCode::of(-3), Some(Some(NcclCode::Other(-3))));
        assert!(NcclCode::Remote.is_worth_another_try() && !NcclCode::Usage.is_worth_another_try());
    }

    #[test]
    fn errors_are_one_line_each() {
        let lacks = LoadError::NoSymbol { library: "libm.so.6".into(), symbol: "ncclSend" };
        let tried = LoadError::NotFound { tried: vec![("libnccl.so.2".into(), "no such file".into()), ("x".into(), "y".into())] };
        let failed = NcclError { call: "ncclSend", code: NcclCode::Cuda, text: "unhandled cuda error".into(), detail: String::new() };
        let old = LoadError::TooOld { library: "libnccl.so.2".into(), version: (2, 18, 5) };
        let mute = LoadError::NoVersion { library: "libnccl.so.2".into(), error: failed.clone() };
        assert!(old.to_string().starts_with("libnccl.so.2 is NCCL 2.18.5, and 2.19 or later is needed"));
        for text in [lacks.to_string(), tried.to_string(), failed.to_string(), old.to_string(), mute.to_string()] {
            assert!(!text.contains('\n'), "{text}");
        }
        assert!(tried.to_string().contains("libnccl.so.2 (no such file), x (y)"));
        assert_eq!(failed.to_string(), "ncclSend failed: unhandled cuda error");
        assert_eq!(NcclError { detail: "at 3".into(), ..failed }.to_string(), "ncclSend failed: unhandled cuda error (at 3)");
    }
}
