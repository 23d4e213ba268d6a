//! What a model folder can lack or have wrong.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a model folder cannot be used. The folder is wrong, or holds something that this executor does not run; each says what, where and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// There is no such folder.
    NoFolder(PathBuf),
    /// A file cannot be read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that must be there is not.
    Missing {
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        file: String,
        /// What to do.
        hint: &'static str,
    },
    /// A JSON file is broken.
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser says, with line and column.
        problem: String,
    },
    /// A field of a JSON file is missing or wrong.
    Field {
        /// The file.
        path: PathBuf,
        /// The field; that of an inner object with a dot.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model is of a kind that this executor does not run.
    Unsupported {
        /// The file that says so.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What would do.
        instead: &'static str,
    },
    /// A weights file as a whole is wrong.
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: WeightsProblem,
    },
    /// One tensor is wrong.
    Tensor {
        /// The file that it is in, or would be in.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What is wrong.
        problem: TensorProblem,
    },
    /// The layers cannot be split over that many stages.
    Stages {
        /// Stages asked for.
        stages: usize,
        /// Layers that there are.
        layers: usize,
    },
}

/// What is wrong with a weights file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightsProblem {
    /// A pointer of Git LFS stands in its place: the weights were never fetched.
    LfsPointer,
    /// It has no bytes at all, or fewer than the shortest header.
    Short(u64),
    /// The header is no header of a safetensors file.
    Header(String),
    /// It ends before the last tensor does.
    Truncated {
        /// Bytes that there must be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
}

/// What is wrong with a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorProblem {
    /// It is not there.
    Missing,
    /// The index names a file which does not have it.
    NotInShard,
    /// Its dimensions do not fit the configuration.
    Shape {
        /// What the configuration asks for.
        expected: Vec<usize>,
        /// What it has.
        found: Vec<usize>,
    },
    /// Its numbers are of a kind that is not read.
    Dtype(String),
    /// `tie_word_embeddings` says that the head is the embedding, and the folder has another head.
    NotTied,
    /// One of its numbers is infinite or not a number.
    NotFinite {
        /// Which, counted through the whole tensor.
        index: usize,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFolder(path) => {
                write!(f, "{}: no such folder; give one with config.json, *.safetensors and tokenizer.json", path.display())
            }
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Missing { folder, file, hint } => write!(f, "{}: {file} is missing; {hint}", folder.display()),
            Self::Json { path, problem } => write!(f, "{}: not JSON: {problem}", path.display()),
            Self::Field { path, field, problem } => write!(f, "{}: {field} {problem}", path.display()),
            Self::Unsupported { path, what, instead } => write!(f, "{}: {what} is not supported; {instead}", path.display()),
            Self::Weights { path, problem } => write!(f, "{}: {problem}", path.display()),
            Self::Tensor { path, tensor, problem } => write!(f, "{}: tensor {tensor} {problem}", path.display()),
            Self::Stages { stages, layers } => {
                write!(f, "{stages} stages for {layers} layers: each stage needs at least one layer, and there is at least one stage")
            }
        }
    }
}

impl fmt::Display for WeightsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LfsPointer => f.write_str("a Git LFS pointer stands in place of the weights: fetch them with git lfs pull"),
            Self::Short(bytes) => write!(f, "{bytes} bytes are no safetensors file: fetch it again"),
            Self::Header(problem) => write!(f, "no safetensors file: {problem}"),
            Self::Truncated { expected, found } => {
                write!(f, "{found} bytes, but its header speaks of {expected}: the file is cut off, fetch it again")
            }
        }
    }
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing: config.json and weights do not belong together, or the model is of another family"),
            Self::NotInShard => f.write_str("is not in the file that the index names for it: index and files do not belong together"),
            Self::Shape { expected, found } => write!(f, "has shape {found:?}, config.json asks for {expected:?}"),
            Self::Dtype(dtype) => write!(f, "holds {dtype}: BF16, F16 and F32 are read; convert the weights"),
            Self::NotTied => f.write_str(
                "is not the embedding, as tie_word_embeddings in config.json says: set it to false, or take the head out of the weights",
            ),
            Self::NotFinite { index } => write!(f, "holds a number that is not finite, at {index}: the file is damaged"),
        }
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl ModelError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn field(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field { path: path.to_owned(), field: field.into(), problem: problem.into() }
    }

    pub(super) fn unsupported(path: &Path, what: impl Into<String>, instead: &'static str) -> Self {
        Self::Unsupported { path: path.to_owned(), what: what.into(), instead }
    }

    pub(super) fn tensor(path: &Path, tensor: &str, problem: TensorProblem) -> Self {
        Self::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), problem }
    }
}
