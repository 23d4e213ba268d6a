//! What tests can ask of the stand-in for the driver, and tell it (`emulation/driver/hook.hpp`). Not there on a GPU.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(unsafe_code, reason = "functions of another language")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library, RTLD_NOW, Symbol};

/// The stand-in counts and fails for the whole process: tests that use it take turns.
pub fn take_turns() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Fake {
    seed: Symbol<unsafe extern "C" fn(u64)>,
    count: Symbol<unsafe extern "C" fn(*const c_char) -> u64>,
    fail: Symbol<unsafe extern "C" fn(*const c_char, u64, c_int)>,
    mend: Symbol<unsafe extern "C" fn(c_int)>,
    gpus: Symbol<unsafe extern "C" fn(c_int)>,
}

impl Fake {
    /// The stand-in, if that is the driver which is loaded.
    pub fn find() -> Option<Self> {
        // SAFETY: the driver is loaded already; the stand-in's functions are declared as here, and it is never unloaded.
        unsafe {
            let library = Library::open(Some("libcuda.so.1"), RTLD_NOW).ok()?;
            let fake = Self {
                seed: library.get(b"cpp_fake_seed\0").ok()?,
                count: library.get(b"cpp_fake_count\0").ok()?,
                fail: library.get(b"cpp_fake_fail\0").ok()?,
                mend: library.get(b"cpp_fake_break\0").ok()?,
                gpus: library.get(b"cpp_fake_gpus\0").ok()?,
            };
            std::mem::forget(library);
            Some(fake)
        }
    }

    /// How long what takes from now on, on streams that are made.
    pub fn seed(&self, seed: u64) {
        // SAFETY: as declared.
        unsafe { (self.seed)(seed) }
    }

    pub fn count(&self, what: &CStr) -> u64 {
        // SAFETY: as declared; the text ends with NUL.
        unsafe { (self.count)(what.as_ptr()) }
    }

    /// The `after`th call from now on of `what` goes wrong.
    pub fn fail(&self, what: &CStr, after: u64, result: c_int) {
        // SAFETY: as declared; the text ends with NUL.
        unsafe { (self.fail)(what.as_ptr(), after, result) }
    }

    /// So many GPUs from now on.
    pub fn gpus(&self, count: c_int) {
        // SAFETY: as declared.
        unsafe { (self.gpus)(count) }
    }

    /// What has gone wrong is forgotten.
    pub fn mend(&self) {
        // SAFETY: as declared.
        unsafe { (self.mend)(0) }
    }
}
