//! Products of matrices: a handle of cuBLAS for one stream, with memory of its own to work in.
//!
//! cudarc's handle unwraps where it is dropped and binds no context: after a kernel that has gone wrong, or on another thread, dropping it would
//! panic.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::cublas::{result as blas, sys};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};

use super::edge::DeviceAddress;
use super::error::{CudaError, Doing};
use super::planted::happens;

/// What NVIDIA asks for on sm_90: 32 MiB (cuBLAS's documentation, `cublasSetWorkspace`).
const WORKSPACE: usize = 32 << 20;

/// What a product puts out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Bf16,
    F32,
}

/// out = rows · weightsᵀ, all row after row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    /// `count` rows of `inputs` bf16 numbers.
    pub(crate) rows: DeviceAddress,
    pub(crate) count: usize,
    /// `outputs` rows of `inputs` bf16 numbers.
    pub(crate) weights: DeviceAddress,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    /// `count` rows of `outputs` numbers.
    pub(crate) out: DeviceAddress,
    pub(crate) kind: Output,
}

/// A handle of cuBLAS. What it is asked for is put on its stream in the order of the calls.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    context: Arc<CudaContext>,
    /// Given back when the handle is gone: fields are dropped behind `drop`.
    workspace: CudaSlice<u8>,
}

#[allow(unsafe_code)]
// SAFETY: a handle may be used by any thread, by one at a time: calls take `&self` of a value that is not `Sync`.
unsafe impl Send for Blas {}

impl Blas {
    /// A handle for this stream, with memory to work in: without, it would reserve some at its first product, and at each one that is captured for a
    /// graph. Sums stay in f32: a product that is split along its sums must not put them together in bf16.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        let context = Arc::clone(stream.context());
        context.bind_to_thread().doing("opening cuBLAS")?;
        #[allow(unsafe_code)]
        // SAFETY: nobody reads it but cuBLAS, which writes it before.
        let workspace = unsafe { stream.alloc::<u8>(WORKSPACE) }.doing("reserving memory for products")?;
        let handle = blas::create_handle().doing("opening cuBLAS")?;
        let made = Self { handle, context, workspace };
        let address = made.workspace.device_ptr(stream).0;
        #[allow(unsafe_code)]
        // SAFETY: the handle is new. The stream is kept by the workspace, which outlives the handle. Its stream comes first, since that takes
        // a handle's workspace away.
        unsafe {
            blas::set_stream(handle, stream.cu_stream().cast()).doing("opening cuBLAS")?;
            if happens() {
                sys::cublasSetWorkspace_v2(handle, address as *mut _, WORKSPACE).result().doing("opening cuBLAS")?;
            }
            if happens() {
                let mode = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
                sys::cublasSetMathMode(handle, mode).result().doing("opening cuBLAS")?;
            }
        }
        Ok(made)
    }

    /// Puts a product on the stream; none of no rows.
    pub(crate) fn multiply(&self, product: Product) -> Result<(), CudaError> {
        if product.count == 0 {
            return Ok(());
        }
        self.context.bind_to_thread().doing("multiplying")?;
        let (one, zero) = (1.0f32, 0.0f32);
        let bf16 = sys::cudaDataType_t::CUDA_R_16BF;
        let out_type = if product.kind == Output::F32 { sys::cudaDataType_t::CUDA_R_32F } else { bf16 };
        let [outputs, count, inputs] = [product.outputs, product.count, product.inputs].map(|size| size as c_int);
        #[allow(unsafe_code)]
        // SAFETY: cuBLAS counts columns first, so that row-major matrices are transposed ones: outᵀ = weights · rowsᵀ. The addresses are those of
        // matrices of these sizes, which the caller has made; alpha and beta are read before the call returns.
        unsafe {
            blas::gemm_ex(
                self.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                outputs,
                count,
                inputs,
                (&raw const one).cast(),
                product.weights as *const _,
                bf16,
                inputs,
                product.rows as *const _,
                bf16,
                inputs,
                (&raw const zero).cast(),
                product.out as *mut _,
                out_type,
                outputs,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .doing("multiplying")
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        bind_to_drop(&self.context);
        #[allow(unsafe_code)]
        // SAFETY: the handle is alive, and not used again. On a device that is gone this fails, and nobody is left to be told.
        let _ = unsafe { blas::destroy_handle(self.handle) };
    }
}

/// Makes a context the thread's, to give back what belongs to it. An earlier error, which the first try would end with, is of no interest any more.
pub(crate) fn bind_to_drop(context: &CudaContext) {
    if context.bind_to_thread().is_err() {
        let _ = context.bind_to_thread();
    }
}
