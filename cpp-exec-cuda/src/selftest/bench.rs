//! A stream of a GPU for checks and measurements: memory, launches and products, one after the other, without a model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, ValidAsZeroBits};

use super::SelftestError;
use crate::cuda::{Blas, Gpu, Output, Product};

/// A stream with a handle of cuBLAS.
#[derive(Debug)]
pub(super) struct Bench {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    blas: Blas,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg {
    Address(u64),
    Int(i32),
    Float(f32),
}

impl Bench {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, SelftestError> {
        let stream = gpu.context().new_stream()?;
        let blas = Blas::new(&stream)?;
        Ok(Self { gpu: Arc::clone(gpu), stream, blas })
    }

    pub(super) fn upload<T: DeviceRepr>(&self, numbers: &[T]) -> Result<CudaSlice<T>, SelftestError> {
        let memory = self.stream.clone_htod(numbers)?;
        // The numbers may be given back behind this.
        self.wait()?;
        Ok(memory)
    }

    /// Copies of this, as many as there is room for. Random numbers must not be zeros: a GPU is faster, and cooler, with those.
    pub(super) fn repeated(&self, some: &[u16], numbers: usize) -> Result<CudaSlice<u16>, SelftestError> {
        let mut memory = self.zeros(numbers)?;
        let mut done = some.len().min(numbers);
        self.stream.memcpy_htod(&some[..done], &mut memory.slice_mut(..done))?;
        while done < numbers {
            let more = done.min(numbers - done);
            let (from, mut to) = memory.split_at_mut(done);
            self.stream.memcpy_dtod(&from.slice(..more), &mut to.slice_mut(..more))?;
            done += more;
        }
        self.wait()?;
        Ok(memory)
    }

    pub(super) fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, numbers: usize) -> Result<CudaSlice<T>, SelftestError> {
        Ok(self.stream.alloc_zeros(numbers.max(1))?)
    }

    pub(super) fn read<T: DeviceRepr + Clone + Default>(&self, memory: &CudaSlice<T>) -> Result<Vec<T>, SelftestError> {
        let mut numbers = vec![T::default(); memory.len()];
        self.stream.memcpy_dtoh(memory, &mut numbers)?;
        self.wait()?;
        Ok(numbers)
    }

    pub(super) fn address<T>(&self, memory: &CudaSlice<T>) -> Arg {
        Arg::Address(memory.device_ptr(&self.stream).0)
    }

    pub(super) fn wait(&self) -> Result<(), SelftestError> {
        Ok(self.stream.synchronize()?)
    }

    /// Runs a kernel; nothing for an empty grid.
    pub(super) fn launch(&self, kernel: &str, grid: [usize; 3], threads: u32, args: &[Arg]) -> Result<(), SelftestError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let function = self.gpu.function(kernel).ok_or_else(|| SelftestError::NoKernel(kernel.to_owned()))?;
        let mut builder = self.stream.launch_builder(function);
        for arg in args {
            match arg {
                Arg::Address(address) => builder.arg(address),
                Arg::Int(number) => builder.arg(number),
                Arg::Float(number) => builder.arg(number),
            };
        }
        let [x, y, z] = grid.map(|size| size as u32);
        #[allow(unsafe_code)]
        // SAFETY: the checks of `kernels.rs` give each kernel the arguments of its declaration, and memory of the sizes of their own cases.
        unsafe { builder.launch(LaunchConfig { grid_dim: (x, y, z), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }) }?;
        Ok(())
    }

    /// out = a · bᵀ of square bf16 matrices.
    pub(super) fn multiply(&self, a: &CudaSlice<u16>, b: &CudaSlice<u16>, out: &CudaSlice<u16>, size: usize) -> Result<(), SelftestError> {
        assert!([a, b, out].iter().all(|matrix| matrix.len() >= size * size), "matrices of their own caller");
        let at = |memory: &CudaSlice<u16>| memory.device_ptr(&self.stream).0;
        let (rows, weights, out) = (at(b), at(a), at(out));
        self.blas.multiply(Product { rows, count: size, weights, outputs: size, inputs: size, out, kind: Output::Bf16 })?;
        Ok(())
    }

    pub(super) fn copy(&self, from: &CudaSlice<u16>, to: &mut CudaSlice<u16>) -> Result<(), SelftestError> {
        Ok(self.stream.memcpy_dtod(from, to)?)
    }

    /// How long `what` takes once, in the middle of many, on a device that has come up to its clock: the least of three rounds. The first are not counted.
    pub(super) fn time(&self, times: u32, mut what: impl FnMut() -> Result<(), SelftestError>) -> Result<Duration, SelftestError> {
        let mut round = |times: u32| {
            let since = Instant::now();
            for _ in 0..times {
                what()?;
            }
            self.wait()?;
            Ok::<_, SelftestError>(since.elapsed() / times.max(1))
        };
        round(3)?;
        Ok(round(times)?.min(round(times)?).min(round(times)?))
    }
}
