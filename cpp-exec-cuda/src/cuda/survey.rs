//! What of CUDA this process can use: libraries are loaded and asked for their versions, GPUs for their names. No context is made, so that a leader
//! which looks takes no memory of a GPU.

use std::ffi::c_int;
use std::fmt;
use std::path::PathBuf;

use cudarc::driver::{result, sys};

use super::compile::{Arch, Compiler};
use super::error::{CudaError, Doing};
use super::gpu::prepare_environment;
use super::library::{CudaLibrary, load_library};
use crate::nccl::Nccl;

/// A GPU, as the driver tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuInfo {
    /// NVIDIA's name of it.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// Its memory in bytes, used or not.
    pub memory: u64,
}

/// What was found; of what was not, why not in one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The version of CUDA that the driver is for.
    pub driver: Result<(i32, i32), String>,
    /// NVRTC's version.
    pub nvrtc: Result<(i32, i32), String>,
    /// Whether cuBLAS is there.
    pub cublas: Result<(), String>,
    /// NCCL's version. Stages that are threads of one process do without.
    pub nccl: Result<(i32, i32, i32), String>,
    /// The GPUs, by their ordinals.
    pub gpus: Vec<GpuInfo>,
}

impl Survey {
    /// Loads what there is, from these folders or from where the system looks, and asks it. What is loaded stays so.
    #[must_use]
    pub fn look(folders: &[PathBuf]) -> Self {
        let text = |error: &dyn fmt::Display| error.to_string();
        let mut gpus = Vec::new();
        let driver = driver(folders, &mut gpus).map_err(|error| text(&error));
        let nvrtc = Compiler::load(folders).map(|compiler| compiler.version()).map_err(|error| text(&error));
        let cublas = load_library(CudaLibrary::Cublas, folders).map_err(|error| text(&error));
        let nccl = Nccl::load_near(folders).map_err(|error| text(&error));
        let nccl = nccl.and_then(|nccl| nccl.version().map_err(|error| text(&error)));
        Self { driver, nvrtc, cublas, nccl, gpus }
    }

    /// Why no stage can run on a GPU here, in one line; `None`: nothing speaks against it.
    #[must_use]
    pub fn why_not(&self) -> Option<String> {
        let driver = match &self.driver {
            Ok(driver) => driver,
            Err(problem) => return Some(problem.clone()),
        };
        if self.gpus.is_empty() {
            return Some("the CUDA driver is there and has no GPU".to_owned());
        }
        let nvrtc = match &self.nvrtc {
            Ok(nvrtc) => nvrtc,
            Err(problem) => return Some(problem.clone()),
        };
        if driver.0 < nvrtc.0 {
            return Some(CudaError::OldDriver { driver: *driver, nvrtc: *nvrtc }.to_string());
        }
        self.cublas.as_ref().err().cloned()
    }
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Ok((major, minor)) => writeln!(f, "CUDA driver         for CUDA {major}.{minor}")?,
            Err(problem) => writeln!(f, "CUDA driver         none: {problem}")?,
        }
        match &self.nvrtc {
            Ok((major, minor)) => writeln!(f, "NVRTC               {major}.{minor}")?,
            Err(problem) => writeln!(f, "NVRTC               none: {problem}")?,
        }
        match &self.cublas {
            Ok(()) => writeln!(f, "cuBLAS              found")?,
            Err(problem) => writeln!(f, "cuBLAS              none: {problem}")?,
        }
        match &self.nccl {
            Ok((major, minor, patch)) => writeln!(f, "NCCL                {major}.{minor}.{patch}")?,
            Err(problem) => writeln!(f, "NCCL                none, so stages as processes cannot hand on by it: {problem}")?,
        }
        for (ordinal, gpu) in self.gpus.iter().enumerate() {
            writeln!(f, "GPU {ordinal:<15} {}, {}, {:.1} GiB", gpu.name, gpu.arch, gpu.memory as f64 / f64::from(1 << 30))?;
        }
        Ok(())
    }
}

/// The driver's version of CUDA, and its GPUs.
fn driver(folders: &[PathBuf], gpus: &mut Vec<GpuInfo>) -> Result<(i32, i32), CudaError> {
    prepare_environment()?;
    load_library(CudaLibrary::Driver, folders)?;
    result::init().doing("starting the driver")?;
    for ordinal in 0..result::device::get_count().doing("counting GPUs")? {
        let device = result::device::get(ordinal).doing("finding a GPU")?;
        let name = result::device::get_name(device).doing("asking for a GPU's name")?;
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        #[allow(unsafe_code)]
        // SAFETY: the driver has just given this device; it writes one number.
        let attribute = |which| unsafe { result::device::get_attribute(device, which) }.doing("asking for the compute capability");
        let (major, minor) = (attribute(MAJOR)?.unsigned_abs(), attribute(MINOR)?.unsigned_abs());
        #[allow(unsafe_code)]
        // SAFETY: as above.
        let memory = unsafe { result::device::total_mem(device) }.doing("asking for a GPU's memory")? as u64;
        gpus.push(GpuInfo { name, arch: Arch { major, minor }, memory });
    }
    driver_version()
}

/// The version of CUDA that the driver is for. It must be loaded.
pub(super) fn driver_version() -> Result<(i32, i32), CudaError> {
    let mut number: c_int = 0;
    #[allow(unsafe_code)]
    // SAFETY: the driver is loaded; it writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut number) }.result().doing("asking for the driver's version")?;
    Ok((number / 1000, number % 1000 / 10))
}

#[cfg(test)]
mod tests {
    use super::{Arch, GpuInfo, Survey};

    #[test]
    fn the_first_thing_that_is_missing_is_named() {
        let gpu = GpuInfo { name: "one".into(), arch: Arch { major: 9, minor: 0 }, memory: 3 << 29 };
        let mut found = Survey {
            driver: Err("no driver".into()),
            nvrtc: Err("no NVRTC".into()),
            cublas: Err("no cuBLAS".into()),
            nccl: Err("no NCCL".into()),
            gpus: Vec::new(),
        };
        assert_eq!(found.why_not().as_deref(), Some("no driver"));
        found.driver = Ok((12, 9));
        assert_eq!(found.why_not().as_deref(), Some("the CUDA driver is there and has no GPU"));
        found.gpus.push(gpu);
        assert_eq!(found.why_not().as_deref(), Some("no NVRTC"));
        found.nvrtc = Ok((13, 0));
        assert!(found.why_not().unwrap().contains("for CUDA 12.9 and NVRTC is 13.0"));
        found.driver = Ok((13, 0));
        assert_eq!(found.why_not().as_deref(), Some("no cuBLAS"));
        found.cublas = Ok(());
        assert_eq!(found.why_not(), None, "NCCL is for processes");
        let text = found.to_string();
        assert!(
            text.contains("for CUDA 13.0\n") && text.contains("GPU 0               one, sm_90, 1.5 GiB\n") && text.contains("no NCCL"),
            "{text}"
        );
    }
}
