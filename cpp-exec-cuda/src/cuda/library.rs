//! CUDA's libraries: found where they are, loaded when they are needed.
//!
//! cudarc loads a library by its name at the first use, and panics if it is not there. Here it is loaded before, by its path if it
//! lies in a given folder: a library that is loaded is found by its name from then on (glibc compares the name that it was built with). Its
//! symbols stay its own: no other library is bound to them.

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A library of CUDA 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaLibrary {
    /// The driver's.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Products of matrices.
    Cublas,
    /// Products of matrices, the newer interface.
    CublasLt,
}

impl CudaLibrary {
    /// The file that is looked for.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Nvrtc => "libnvrtc.so.13",
            Self::Cublas => "libcublas.so.13",
            Self::CublasLt => "libcublasLt.so.13",
        }
    }

    /// Files of the same folder that it opens by name when it is used, by the beginning of their names.
    const fn companions(self) -> Option<&'static str> {
        match self {
            Self::Nvrtc => Some("libnvrtc-builtins.so"),
            Self::Cublas => Some("libcublasLt.so"),
            Self::Driver | Self::CublasLt => None,
        }
    }

    fn is_there(self) -> bool {
        #[allow(unsafe_code)]
        // SAFETY: runs the initialisers of NVIDIA's library of that name, which ask nothing of the caller.
        unsafe {
            match self {
                Self::Driver => cudarc::driver::sys::is_culib_present(),
                Self::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Self::Cublas => cudarc::cublas::sys::is_culib_present(),
                Self::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
            }
        }
    }
}

/// A library is not on this machine, or cannot be loaded. Installing it, or naming its folder in `CPP_CUDA_LIB_DIR`, helps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingLibrary {
    /// Which.
    pub library: CudaLibrary,
    /// Where it was looked for and what was wrong there, beside the system's own folders.
    pub tried: Vec<(PathBuf, String)>,
}

impl fmt::Display for MissingLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.library.file();
        let source = crate::machine::LIBRARIES.iter().find(|(name, _)| *name == file).map_or("", |(_, source)| source);
        write!(f, "{file} is not among the system's libraries")?;
        for (path, problem) in &self.tried {
            write!(f, ", nor {} ({problem})", path.display())?;
        }
        write!(f, ": {source}, or name its folder in CPP_CUDA_LIB_DIR")
    }
}

impl std::error::Error for MissingLibrary {}

/// The folders of `CPP_CUDA_LIB_DIR`, separated as in `PATH`.
#[must_use]
pub fn standard_folders() -> Vec<PathBuf> {
    std::env::var_os("CPP_CUDA_LIB_DIR").iter().flat_map(std::env::split_paths).collect()
}

/// Sees to it that a library can be used: from the first of `folders` that has it, or from where the system looks. It stays loaded.
///
/// # Errors
/// It is in none of them.
pub fn load_library(library: CudaLibrary, folders: &[PathBuf]) -> Result<(), MissingLibrary> {
    let mut tried = Vec::new();
    for folder in folders {
        match load_from(library, folder) {
            Ok(()) => break,
            Err(problem) => tried.push((folder.join(library.file()), problem)),
        }
    }
    if library.is_there() { Ok(()) } else { Err(MissingLibrary { library, tried }) }
}

fn load_from(library: CudaLibrary, folder: &Path) -> Result<(), String> {
    let path = folder.join(library.file());
    if !path.is_file() {
        return Err("no such file".to_owned());
    }
    if let Some(companions) = library.companions() {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(companions)));
        files.sort();
        // One that does not load is told of by the library that needs it.
        files.iter().for_each(|file| drop(keep(file)));
    }
    keep(&path)
}

/// Loads a file for the life of the process.
fn keep(path: &Path) -> Result<(), String> {
    #[allow(unsafe_code)]
    // SAFETY: runs the initialisers of a library that the user has named as NVIDIA's; it is never unloaded, so nothing of it is left dangling.
    let loaded = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    loaded.map(std::mem::forget).map_err(|error| crate::nccl::reason(&error))
}

#[cfg(test)]
mod tests {
    use super::{CudaLibrary, load_library};

    #[test]
    fn a_library_that_is_nowhere_is_told_of_with_all_places() {
        let folder = std::env::temp_dir().join(format!("cpp-run-libraries-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libcublasLt.so.13"), "no library").unwrap();
        let Err(error) = load_library(CudaLibrary::CublasLt, &["/nowhere".into(), folder.clone()]) else {
            println!("not tested: this machine has cuBLAS");
            return;
        };
        assert_eq!(error.tried.len(), 2);
        let text = error.to_string();
        assert!(text.starts_with("libcublasLt.so.13 is not among"), "{text}");
        assert!(text.contains("/nowhere/libcublasLt.so.13 (no such file)") && text.contains("pip install nvidia-cublas"), "{text}");
        assert!(text.contains("too short") || text.contains("invalid ELF"), "{text}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
