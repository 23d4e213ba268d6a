//! NCCL's functions, found by name in a library that is loaded at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

use libloading::os::unix::{Library, RTLD_NOW};

use super::error::{LoadError, NcclCode, NcclError, reason};
use super::types::{Config, Handle, UniqueId};

/// Names of the library: that of the Python package and of packages for running, then that of packages for developing.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The first version that does not keep the address of a handle (its `ncclCommInitRankConfig`, when it does not block).
const LEAST: (i32, i32, i32) = (2, 19, 0);

/// NCCL's number of a version: up to 2.8 it had one digit less for the minor one.
const fn version_of(number: c_int) -> (i32, i32, i32) {
    let major = if number < 10_000 { 1000 } else { 10_000 };
    (number / major, number % major / 100, number % 100)
}

/// The table of functions, and how it is filled from a library.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// NCCL's functions by their addresses.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(library: &Library, name: &str) -> Result<Self, LoadError> {
                Ok(Self {
                    $($field: {
                        #[allow(unsafe_code)]
                        // SAFETY: NCCL's header declares the function with these types; the library stays loaded as long as the process.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> $result>(concat!($symbol, "\0").as_bytes()) };
                        *symbol.map_err(|_| LoadError::NoSymbol { library: name.to_owned(), symbol: $symbol })?
                    },)*
                })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion": fn(*mut c_int) -> c_int;
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    init_rank_config = "ncclCommInitRankConfig": fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> c_int;
    finalize = "ncclCommFinalize": fn(Handle) -> c_int;
    destroy = "ncclCommDestroy": fn(Handle) -> c_int;
    abort = "ncclCommAbort": fn(Handle) -> c_int;
    async_error = "ncclCommGetAsyncError": fn(Handle, *mut c_int) -> c_int;
    error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
    last_error = "ncclGetLastError": fn(Handle) -> *const c_char;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    recv = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
}

/// NCCL, loaded. It is never unloaded: its threads outlive its communicators.
#[derive(Clone, Copy, Debug)]
pub struct Nccl {
    pub(super) functions: Functions,
}

impl Nccl {
    /// Loads NCCL: the file that `CPP_NCCL_LIB` names, or `libnccl.so.2` or `libnccl.so` from where the system looks.
    ///
    /// # Errors
    /// It is not there, or lacks a function. A file that `CPP_NCCL_LIB` names is the only one that is tried.
    pub fn load() -> Result<Self, LoadError> {
        match std::env::var("CPP_NCCL_LIB") {
            Ok(file) if !file.is_empty() => Self::load_from(&[&file]),
            _ => Self::load_from(&NAMES),
        }
    }

    /// As [`load`](Self::load), but where nothing is named a file of one of these folders goes before the system's.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_near(folders: &[PathBuf]) -> Result<Self, LoadError> {
        if std::env::var_os("CPP_NCCL_LIB").is_some_and(|file| !file.is_empty()) {
            return Self::load();
        }
        let files = folders.iter().map(|folder| folder.join(NAMES[0])).filter(|file| file.is_file());
        let files: Vec<String> = files.map(|file| file.to_string_lossy().into_owned()).collect();
        let names: Vec<&str> = files.iter().map(String::as_str).chain(NAMES).collect();
        Self::load_from(&names)
    }

    /// Loads the first of these files that can be loaded.
    ///
    /// # Errors
    /// None can be, or that one lacks a function.
    pub fn load_from(names: &[&str]) -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        for &name in names {
            #[allow(unsafe_code)]
            // SAFETY: runs the initialisers of a library that is NVIDIA's by its name, or that the user has named as such.
            match unsafe { Library::open(Some(name), RTLD_NOW) } {
                Ok(library) => {
                    let functions = Functions::find(&library, name)?;
                    std::mem::forget(library);
                    return Self { functions }.new_enough(name);
                }
                Err(error) => tried.push((name.to_owned(), reason(&error))),
            }
        }
        Err(LoadError::NotFound { tried })
    }

    fn new_enough(self, name: &str) -> Result<Self, LoadError> {
        match self.version() {
            Ok(version) if version >= LEAST => Ok(self),
            Ok(version) => Err(LoadError::TooOld { library: name.to_owned(), version }),
            Err(error) => Err(LoadError::NoVersion { library: name.to_owned(), error }),
        }
    }

    /// Its version: major, minor, patch.
    ///
    /// # Errors
    /// NCCL's.
    pub fn version(&self) -> Result<(i32, i32, i32), NcclError> {
        let mut number = 0;
        #[allow(unsafe_code)]
        // SAFETY: NCCL writes one number.
        let result = unsafe { (self.functions.get_version)(&raw mut number) };
        self.check("ncclGetVersion", result, ptr::null_mut())?;
        Ok(version_of(number))
    }

    /// A new id for a communicator. One rank makes it and sends it to the others. Opens a port.
    ///
    /// # Errors
    /// NCCL's: no network interface, for example.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; UniqueId::SIZE]);
        #[allow(unsafe_code)]
        // SAFETY: NCCL writes 128 bytes.
        let result = unsafe { (self.functions.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", result, ptr::null_mut())?;
        Ok(id)
    }

    /// `Ok(true)`: the call is through; `Ok(false)`: it goes on.
    pub(super) fn check(&self, call: &'static str, result: c_int, handle: Handle) -> Result<bool, NcclError> {
        match NcclCode::of(result) {
            None => Ok(true),
            Some(None) => Ok(false),
            Some(Some(code)) => Err(self.error(call, code, result, handle)),
        }
    }

    fn error(&self, call: &'static str, code: NcclCode, result: c_int, handle: Handle) -> NcclError {
        let text = |pointer: *const c_char| {
            if pointer.is_null() {
                return String::new();
            }
            #[allow(unsafe_code)]
            // SAFETY: NCCL's texts end with NUL and live as long as it is loaded, or until its next error on this thread.
            let text = unsafe { CStr::from_ptr(pointer) };
            text.to_string_lossy().trim_end().to_owned()
        };
        #[allow(unsafe_code)]
        // SAFETY: any number may be asked for; the handle is a living communicator's or null.
        let (text_of_code, detail) = unsafe { (text((self.functions.error_string)(result)), text((self.functions.last_error)(handle))) };
        NcclError { call, code, text: text_of_code, detail }
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST, LoadError, Nccl, version_of};
    use crate::nccl::{Communicator, EdgeConfig, NcclCode, Rank};

    #[test]
    fn a_file_that_is_not_there_is_named_with_the_systems_words() {
        let Err(LoadError::NotFound { tried }) = Nccl::load_from(&["/nowhere/libnccl.so.2", "libnccl-of-nobody.so"]) else {
            panic!("it was found")
        };
        assert_eq!(tried.len(), 2);
        assert!(tried[0].1.contains("No such file"), "{tried:?}");
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!([22_809, 21_805, 2_708].map(version_of), [(2, 28, 9), (2, 18, 5), (2, 7, 8)]);
        assert!(version_of(21_805) < LEAST && version_of(21_903) >= LEAST);
    }

    #[test]
    fn a_library_that_is_no_nccl_is_refused() {
        // The C library is on every machine that has these tests.
        let error = Nccl::load_from(&["libc.so.6"]).unwrap_err();
        assert_eq!(error, LoadError::NoSymbol { library: "libc.so.6".into(), symbol: "ncclGetVersion" });
    }

    #[test]
    fn the_real_library_answers_where_it_is() {
        let nccl = match Nccl::load() {
            Ok(nccl) => nccl,
            Err(error @ LoadError::NotFound { .. }) => {
                println!("not tested: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let version = nccl.version().unwrap();
        assert!(version >= LEAST, "{version:?}");
        let ids = [nccl.unique_id().unwrap(), nccl.unique_id().unwrap()];
        assert_ne!(ids[0], ids[1]);
        if crate::machine::Machine::look().gpus.is_empty() {
            // Without a device there is no communicator, and an error that says so.
            let error = Communicator::connect(&nccl, ids[0], Rank::Upstream, EdgeConfig::default()).unwrap_err();
            assert_eq!(error.code, NcclCode::Cuda, "{error}");
            println!("NCCL {version:?}, without a device: {error}");
        }
    }
}
