//! A GPU: context, stream, kernels and products of matrices. All that is unsafe of running a batch is here.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Once};

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, ValidAsZeroBits, result};
use cudarc::nvrtc::Ptx;

pub(super) use super::blas::Output;
use super::blas::{Blas, Product};
use super::cache::KernelCache;
use super::compile::{Arch, Compiler, Kernels};
use super::edge::DeviceAddress;
use super::error::{CudaError, Doing};
use super::library::{CudaLibrary, load_library};
use super::planted::happens;
use super::source::KERNELS;
use super::stream::{Priority, Stream};
use super::survey::driver_version;

/// A GPU, opened: what the stages on it share.
#[derive(Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    functions: Vec<CudaFunction>,
    arch: Arch,
}

/// Where numbers lie on a device. Null where a kernel takes none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer(u64);

impl Pointer {
    pub(super) const NULL: Self = Self(0);

    pub(super) const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// As the driver has it.
    pub(super) const fn address(self) -> DeviceAddress {
        self.0
    }

    /// So many bytes further.
    pub(super) const fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Pointer(Pointer),
    Int(i32),
    Float(f32),
}

impl From<Pointer> for Argument {
    fn from(pointer: Pointer) -> Self {
        Self::Pointer(pointer)
    }
}

impl From<usize> for Argument {
    /// Sizes of models and batches are below 2^31: they were checked where they came in.
    fn from(number: usize) -> Self {
        Self::Int(number as i32)
    }
}

impl From<f32> for Argument {
    fn from(number: f32) -> Self {
        Self::Float(number)
    }
}

impl Gpu {
    /// Opens a GPU: loads the libraries from `folders` or from where the system looks, and the kernels from the cache or the compiler.
    ///
    /// # Errors
    /// A library that is missing, a device that is not there or too old, a driver that is.
    pub fn open(ordinal: usize, folders: &[PathBuf], cache: Option<&KernelCache>) -> Result<Arc<Self>, CudaError> {
        prepare_environment()?;
        for library in [CudaLibrary::Driver, CudaLibrary::Cublas] {
            load_library(library, folders)?;
        }
        let compiler = Compiler::load(folders)?;
        let context = CudaContext::new(ordinal).doing("opening the GPU")?;
        #[allow(unsafe_code)]
        // SAFETY: stages order what goes over several streams by events of their own (`stage`), and give memory back when nothing is under way.
        unsafe {
            context.disable_event_tracking();
        }
        let driver = driver_version()?;
        // Machine code of a later minor version runs; of a later major version it need not.
        if driver.0 < compiler.version().0 {
            return Err(CudaError::OldDriver { driver, nvrtc: compiler.version() });
        }
        let (major, minor) = context.compute_capability().doing("asking for the compute capability")?;
        let arch = Arch { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        let kernels = Kernels::for_arch(&compiler, cache, arch)?;
        let module = context.load_module(Ptx::from_binary(kernels.code)).doing("loading the kernels")?;
        let functions = KERNELS.iter().map(|name| module.load_function(name).doing("finding a kernel")).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { context, functions, arch }))
    }

    /// Its architecture.
    #[must_use]
    pub const fn arch(&self) -> Arch {
        self.arch
    }

    /// Its context, which threads that use it by themselves must bind.
    pub(crate) const fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// A kernel by its name.
    pub(crate) fn function(&self, name: &str) -> Option<&CudaFunction> {
        self.functions.get(Self::kernel(name)?)
    }

    /// The number of a kernel.
    pub(super) fn kernel(name: &str) -> Option<usize> {
        KERNELS.binary_search(&name).ok()
    }
}

/// What the driver reads when it begins: kernels are loaded with their module, not when they are first run, which would wait for the device; and streams
/// have queues of their own, so that what receives holds up no kernel.
pub(super) fn prepare_environment() -> Result<(), CudaError> {
    if blocks(std::env::var_os("CUDA_LAUNCH_BLOCKING").as_deref()) {
        return Err(CudaError::Environment { variable: "CUDA_LAUNCH_BLOCKING", hint: "unset it" });
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (variable, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")] {
            #[allow(unsafe_code)]
            // SAFETY: the standard library's own readers are kept out by its lock; of C code, the driver and its libraries read the environment when
            // they are loaded or initialised, which comes after this.
            unsafe {
                std::env::set_var(variable, value);
            }
        }
    });
    Ok(())
}

/// Whether a launch returns only when its kernel has run.
fn blocks(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| value != "0" && !value.is_empty())
}

/// A stream of a GPU with a handle of cuBLAS: what one stage computes on. Everything on it runs in the order of the calls.
#[derive(Debug)]
pub(super) struct Queue {
    gpu: Arc<Gpu>,
    stream: Stream,
    blas: Blas,
}

impl Queue {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let stream = Stream::new(&gpu.context, Priority::Usual)?;
        let blas = Blas::new(stream.inner())?;
        Ok(Self { gpu: gpu.clone(), stream, blas })
    }

    pub(super) const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Memory of zeros. At start only: it may wait for the device.
    pub(super) fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, numbers: usize) -> Result<CudaSlice<T>, CudaError> {
        self.stream.inner().alloc_zeros(numbers.max(1)).doing("reserving memory")
    }

    /// Memory with these numbers. At start only: it waits until they are there, since the memory that they are in may be given back then.
    pub(super) fn upload<T: DeviceRepr>(&self, numbers: &[T]) -> Result<CudaSlice<T>, CudaError> {
        let memory = self.stream.inner().clone_htod(numbers).doing("copying weights to the device")?;
        if happens() {
            self.wait()?;
        }
        Ok(memory)
    }

    /// Memory with stretches of so many numbers, each of them some numbers again and again. At start only.
    pub(super) fn repeat(&self, stretches: &[(Vec<u16>, usize)]) -> Result<CudaSlice<u16>, CudaError> {
        let memory = self.zeros(stretches.iter().map(|(_, count)| count).sum())?;
        let mut begin = self.pointer(&memory);
        for (some, count) in stretches {
            let mut done = some.len().min(*count);
            #[allow(unsafe_code)]
            // SAFETY: the stretch has room for `count` numbers, of which the first `done` are written, in the order of the stream; what is copied
            // behind them is at most as long, so that the two do not overlap. `some` lives until all is there.
            unsafe {
                result::memcpy_htod_async(begin.0, &some[..done], self.stream.raw()).doing("copying weights to the device")?;
                while done > 0 && done < *count {
                    let more = done.min(count - done);
                    result::memcpy_dtod_async(begin.plus(2 * done).0, begin.0, 2 * more, self.stream.raw()).doing("repeating weights")?;
                    done += more;
                }
            }
            begin = begin.plus(2 * count);
        }
        self.wait()?;
        Ok(memory)
    }

    /// Waits until everything has run. At start only.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        self.stream.inner().synchronize().doing("preparing a stage")
    }

    pub(super) fn pointer<T>(&self, memory: &CudaSlice<T>) -> Pointer {
        // Without event tracking the guard does nothing.
        Pointer(memory.device_ptr(self.stream.inner()).0)
    }

    /// Runs a kernel. Nothing is run for an empty grid.
    pub(super) fn launch(&self, kernel: usize, grid: [usize; 3], threads: u32, arguments: &[Argument]) -> Result<(), CudaError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let mut builder = self.stream.inner().launch_builder(&self.gpu.functions[kernel]);
        for argument in arguments {
            match argument {
                Argument::Pointer(pointer) => builder.arg(&pointer.0),
                Argument::Int(number) => builder.arg(number),
                Argument::Float(number) => builder.arg(number),
            };
        }
        let [x, y, z] = grid.map(|size| size as u32);
        #[allow(unsafe_code)]
        // SAFETY: `stage` gives each kernel the arguments of its declaration, with memory of the sizes that `kernels/README.md` asks for, and
        // has checked with `Layout` that every index of the batch lies within; a test runs it against memory with guards.
        unsafe { builder.launch(LaunchConfig { grid_dim: (x, y, z), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }) }
            .doing("starting a kernel")
            .map(drop)
    }

    /// out = rows · weightsᵀ: `count` rows of `inputs` bf16 numbers, weights of `outputs` rows, sums in f32.
    pub(super) fn multiply(
        &self,
        (rows, count): (Pointer, usize),
        (weights, outputs, inputs): (Pointer, usize, usize),
        (out, kind): (Pointer, Output),
    ) -> Result<(), CudaError> {
        self.blas.multiply(Product { rows: rows.0, count, weights: weights.0, outputs, inputs, out: out.0, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::blocks;
    use std::ffi::OsStr;

    #[test]
    fn launches_that_block_are_recognised() {
        assert!(blocks(Some(OsStr::new("1"))));
        assert!(!blocks(Some(OsStr::new("0"))) && !blocks(Some(OsStr::new(""))) && !blocks(None));
    }
}
