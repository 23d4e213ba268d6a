//! From source to machine code, by NVRTC.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::path::PathBuf;
use std::ptr;

use cudarc::nvrtc::sys;

use super::cache::{CacheError, KernelCache};
use super::library::{CudaLibrary, MissingLibrary, load_library};
use super::source::{HEADERS, digest, unit};

/// A device's architecture: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "the two numbers of a compute capability")]
pub struct Arch {
    /// Before the point.
    pub major: u32,
    /// Behind it.
    pub minor: u32,
}

impl Arch {
    /// The least that has all instructions of the kernels: bf16 on tensor cores, asynchronous copies.
    pub const LEAST: Self = Self { major: 8, minor: 0 };
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// Why there is no machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// NVRTC is not on this machine.
    Missing(MissingLibrary),
    /// The device is older than the kernels' instructions, or this NVRTC does not know it.
    Arch {
        /// The device's.
        arch: Arch,
        /// What this NVRTC compiles for, as far as kernels do.
        supported: Vec<Arch>,
    },
    /// NVRTC refuses the source: a fault of this crate, or an NVRTC that is too old.
    Source {
        /// For which device.
        arch: Arch,
        /// NVRTC's version.
        version: (i32, i32),
        /// What it says.
        log: String,
    },
    /// NVRTC fails otherwise.
    Nvrtc {
        /// The function.
        call: &'static str,
        /// NVRTC's name of what happened.
        result: String,
    },
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => missing.fmt(f),
            Self::Arch { arch, .. } if *arch < Arch::LEAST => write!(f, "the device is {arch}: kernels need {} or later", Arch::LEAST),
            Self::Arch { arch, supported } => {
                let supported: Vec<String> = supported.iter().map(ToString::to_string).collect();
                write!(f, "the device is {arch}, which this NVRTC does not know (it knows {}): install a newer one", supported.join(", "))
            }
            Self::Source { arch, version, log } => write!(f, "NVRTC {}.{} refuses the kernels for {arch}:\n{log}", version.0, version.1),
            Self::Nvrtc { call, result } => write!(f, "NVRTC fails: {call} says {result}"),
        }
    }
}

impl std::error::Error for CompileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Missing(missing) = self { Some(missing) } else { None }
    }
}

/// NVRTC, loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compiler {
    version: (i32, i32),
}

fn check(call: &'static str, result: sys::nvrtcResult) -> Result<(), CompileError> {
    result.result().map_err(|error| CompileError::Nvrtc { call, result: format!("{:?}", error.0) })
}

impl Compiler {
    /// Loads NVRTC from one of these folders or from where the system looks.
    ///
    /// # Errors
    /// It is not there ([`CompileError::Missing`]) or does not answer.
    pub fn load(folders: &[PathBuf]) -> Result<Self, CompileError> {
        load_library(CudaLibrary::Nvrtc, folders).map_err(CompileError::Missing)?;
        let mut version = (0, 0);
        #[allow(unsafe_code)]
        // SAFETY: NVRTC is loaded; it writes one number to each place.
        check("nvrtcVersion", unsafe { sys::nvrtcVersion(&raw mut version.0, &raw mut version.1) })?;
        Ok(Self { version })
    }

    /// Its version. Machine code of a later major version than the driver's (`cuDriverGetVersion`) need not run there.
    #[must_use]
    pub const fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The architectures that it compiles for and kernels run on.
    ///
    /// # Errors
    /// NVRTC does not answer.
    pub fn supported(&self) -> Result<Vec<Arch>, CompileError> {
        let mut count: c_int = 0;
        #[allow(unsafe_code)]
        // SAFETY: NVRTC is loaded (`self` says so); it writes one number.
        check("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) })?;
        let mut numbers: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        #[allow(unsafe_code)]
        // SAFETY: it writes as many numbers as it has said before.
        check("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) })?;
        let archs = numbers.into_iter().filter_map(|number| u32::try_from(number).ok());
        Ok(archs.map(|number| Arch { major: number / 10, minor: number % 10 }).filter(|arch| *arch >= Arch::LEAST).collect())
    }

    /// The options of a compilation.
    fn options(arch: Arch) -> [String; 2] {
        [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()]
    }

    /// Compiles all kernels. Two seconds, more or less.
    ///
    /// # Errors
    /// The architecture is unknown, or NVRTC refuses.
    pub fn compile(&self, arch: Arch) -> Result<Vec<u8>, CompileError> {
        let supported = self.supported()?;
        if !supported.contains(&arch) {
            return Err(CompileError::Arch { arch, supported });
        }
        Program::new(&unit())?.compile(self.version, arch, &Self::options(arch))
    }

    /// What machine code of this compiler for this device is known by.
    fn digest(&self, arch: Arch) -> u128 {
        let (version, options) = (format!("{}.{}", self.version.0, self.version.1), Self::options(arch));
        digest(&[&version, &options[0], &options[1]])
    }
}

/// NVRTC's program, destroyed when it goes.
struct Program {
    handle: sys::nvrtcProgram,
}

/// The source is this crate's own and has no NUL.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

impl Program {
    fn new(unit: &str) -> Result<Self, CompileError> {
        // Kernels include each other by name: all files are headers of the unit.
        let files: Vec<(CString, CString)> =
            HEADERS.iter().chain(&super::source::SOURCES).map(|(name, text)| (c_string(name), c_string(text))).collect();
        let names: Vec<*const c_char> = files.iter().map(|(name, _)| name.as_ptr()).collect();
        let texts: Vec<*const c_char> = files.iter().map(|(_, text)| text.as_ptr()).collect();
        let (unit, name) = (c_string(unit), c"kernels.cu");
        let mut handle = ptr::null_mut();
        #[allow(unsafe_code)]
        // SAFETY: strings end with NUL, and both lists have as many entries as is said; NVRTC copies what it keeps.
        let result = unsafe {
            sys::nvrtcCreateProgram(&raw mut handle, unit.as_ptr(), name.as_ptr(), files.len() as c_int, texts.as_ptr(), names.as_ptr())
        };
        check("nvrtcCreateProgram", result)?;
        Ok(Self { handle })
    }

    fn compile(&self, version: (i32, i32), arch: Arch, options: &[String]) -> Result<Vec<u8>, CompileError> {
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        #[allow(unsafe_code)]
        // SAFETY: the program is alive; the strings end with NUL, and there are as many as is said.
        let result = unsafe { sys::nvrtcCompileProgram(self.handle, pointers.len() as c_int, pointers.as_ptr()) };
        if result == sys::nvrtcResult::NVRTC_ERROR_COMPILATION {
            return Err(CompileError::Source { arch, version, log: self.log() });
        }
        check("nvrtcCompileProgram", result)?;
        let mut size = 0;
        #[allow(unsafe_code)]
        // SAFETY: the program is alive and compiled.
        check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(self.handle, &raw mut size) })?;
        let mut code = vec![0u8; size];
        #[allow(unsafe_code)]
        // SAFETY: NVRTC writes as many bytes as it has said before.
        check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(self.handle, code.as_mut_ptr().cast()) })?;
        Ok(code)
    }

    fn log(&self) -> String {
        #[allow(unsafe_code)]
        // SAFETY: the program is alive and was compiled.
        let log = unsafe { cudarc::nvrtc::result::get_program_log(self.handle) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        #[allow(unsafe_code)]
        // SAFETY: the program was made by `new` and is destroyed here alone. That this fails cannot be acted upon.
        let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.handle) };
    }
}

/// Where machine code came from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Origin {
    /// From the cache.
    Cache,
    /// It was compiled, and kept where there is a cache.
    Compiled,
    /// It was compiled and could not be kept.
    NotKept(CacheError),
}

/// All kernels as machine code for one architecture.
#[derive(Debug)]
#[non_exhaustive]
pub struct Kernels {
    /// For which devices.
    pub arch: Arch,
    /// An ELF file with all of [`KERNELS`](super::KERNELS), as `cuModuleLoadData` takes it.
    pub code: Vec<u8>,
    /// Where it came from.
    pub origin: Origin,
}

impl Kernels {
    /// Machine code for a device: from the cache if this compiler has compiled this source for it before, else compiled and kept there.
    ///
    /// # Errors
    /// As [`Compiler::compile`]. A cache that cannot be written is none: [`Origin::NotKept`].
    pub fn for_arch(compiler: &Compiler, cache: Option<&KernelCache>, arch: Arch) -> Result<Self, CompileError> {
        let (name, digest) = (arch.to_string(), compiler.digest(arch));
        if let Some(code) = cache.and_then(|cache| cache.read(&name, digest)) {
            return Ok(Self { arch, code, origin: Origin::Cache });
        }
        let code = compiler.compile(arch)?;
        let kept = cache.map_or(Ok(()), |cache| cache.write(&name, digest, &code));
        Ok(Self { arch, code, origin: kept.map_or_else(Origin::NotKept, |()| Origin::Compiled) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Arch, CompileError, Compiler, KernelCache, Kernels, Origin};
    use crate::cuda::{KERNELS, standard_folders};

    /// NVRTC, if this machine has it.
    fn compiler() -> Option<Compiler> {
        match Compiler::load(&standard_folders()) {
            Ok(compiler) => Some(compiler),
            Err(CompileError::Missing(missing)) => {
                assert!(standard_folders().is_empty(), "CPP_CUDA_LIB_DIR is given, so it must be there: {missing}");
                println!("not tested: {missing}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn kernels_compile_once_and_then_come_from_the_cache() {
        let Some(compiler) = compiler() else { return };
        let folder = std::env::temp_dir().join(format!("cpp-run-kernels-{}", std::process::id()));
        let (cache, arch) = (KernelCache::at(&folder), Arch { major: 9, minor: 0 });
        let first = Kernels::for_arch(&compiler, Some(&cache), arch).unwrap();
        assert!(matches!(first.origin, Origin::Compiled));
        assert!(first.code.starts_with(b"\x7fELF"));
        for kernel in KERNELS {
            let section = format!(".text.{kernel}\0");
            assert!(first.code.windows(section.len()).any(|bytes| bytes == section.as_bytes()), "{kernel}");
        }
        let second = Kernels::for_arch(&compiler, Some(&cache), arch).unwrap();
        assert!(matches!(second.origin, Origin::Cache) && second.code == first.code);
        let other = Kernels::for_arch(&compiler, Some(&cache), Arch::LEAST).unwrap();
        assert!(matches!(other.origin, Origin::Compiled) && other.code != first.code);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_cache_that_cannot_be_written_does_not_stop_anything() {
        let Some(compiler) = compiler() else { return };
        let file = std::env::temp_dir().join(format!("cpp-run-no-cache-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let kernels = Kernels::for_arch(&compiler, Some(&KernelCache::at(file.join("x"))), Arch::LEAST).unwrap();
        assert!(matches!(kernels.origin, Origin::NotKept(_)) && !kernels.code.is_empty());
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn devices_that_are_too_old_or_unknown_are_refused() {
        let Some(compiler) = compiler() else { return };
        let message = |major| compiler.compile(Arch { major, minor: 0 }).unwrap_err().to_string();
        assert!(message(7).contains("sm_80 or later"), "{}", message(7));
        assert!(message(99).contains("sm_990") && message(99).contains("sm_90"), "{}", message(99));
    }

    #[test]
    fn what_nvrtc_says_of_a_faulty_source_comes_through() {
        let Some(compiler) = compiler() else { return };
        let program = super::Program::new("#include \"common.cuh\"\nwrong;\n").unwrap();
        let error = program.compile(compiler.version(), Arch::LEAST, &Compiler::options(Arch::LEAST)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("kernels.cu(2)") && text.contains("sm_80"), "{text}");
    }
}
