//! Where the stand-ins for CUDA's libraries are, for tests that start `cpp-run`.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::ffi::OsString;

/// What `CPP_CUDA_LIB_DIR` must be, if there is a driver or a stand-in for one; else the reason is told, and with `CPP_CUDA_DEVICE=1` it is a failure.
pub fn libraries() -> Option<OsString> {
    let folders = std::env::var_os("CPP_CUDA_LIB_DIR").filter(|folders| !folders.is_empty());
    if folders.is_none() {
        assert!(std::env::var_os("CPP_CUDA_DEVICE").is_none(), "CPP_CUDA_DEVICE is set, so CPP_CUDA_LIB_DIR must be");
        println!(
            "not tested: CPP_CUDA_LIB_DIR names no folder with CUDA's libraries or their stand-ins (bash .ci/run kernels builds these)"
        );
    }
    folders
}

/// As [`libraries`], where the stand-in for NCCL is among them: what these tests ask of it, the real one cannot do on one GPU.
pub fn nccl() -> Option<OsString> {
    let folders = libraries()?;
    let there =
        std::env::split_paths(&folders).any(|folder| folder.join("libnccl.so.2").is_file() && folder.join("libcuda.so.1").is_file());
    if !there {
        println!("not tested: no stand-in for NCCL is in CPP_CUDA_LIB_DIR (bash .ci/run kernels builds it)");
    }
    there.then_some(folders)
}
