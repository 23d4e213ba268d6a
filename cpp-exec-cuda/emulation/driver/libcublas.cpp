// A stand-in for cuBLAS: the one product that the stages use, on the streams of the stand-in for the driver, summed in f64. Everything else is refused.
//
// Kept from the real one, since callers must live with it (sources: cuBLAS's documentation of cublasSetStream, cublasSetWorkspace, cublasMath_t and
// of CUDA graphs):
// - a handle belongs to the context that is current; a call without one fails;
// - a product works in memory: the handle's own, reserved at the first product, or the caller's; a new stream takes the caller's away. While a
//   stream is captured the handle cannot reserve any: here that is an error, there a node of the graph for each product;
// - kernels are chosen by size and loaded at the first use ("first", as the driver's own kernels); while a stream is captured that is an error here;
// - unless told otherwise, a sum may be split and its parts rounded to bf16 before they are put together;
// - a handle may refer to its memory until it is destroyed.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "../ptx.hpp"
#include "hook.hpp"

namespace {

constexpr int SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, MAPPING_ERROR = 11, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15;
constexpr int DISALLOW_REDUCED_PRECISION = 16;
constexpr int TRANSPOSED = 1, AS_IT_IS = 0, F32 = 0, BF16 = 14, COMPUTE_F32 = 68;

// A product that has been asked for. Columns first: c[j][i] = sum over l of a[i][l] · b[j][l], where c has `ldc`, a `lda` and b `ldb` numbers from one
// column to the next.
struct Product {
    int m, n, k;
    const unsigned short *a, *b;
    void* c;
    int lda, ldb, ldc;
    bool wide, exact;
    char* workspace;
};

float rounded(double sum) {
    return emulation::float_of(round_bf16(static_cast<float>(sum)).bits);
}

// Four sums at once, so that additions need not wait for each other.
double dot(const float* a, const float* b, size_t count) {
    double sums[4] = {0, 0, 0, 0};
    size_t at = 0;
    for (; at + 4 <= count; at += 4) {
        for (size_t i = 0; i < 4; i++) {
            sums[i] += double{a[at + i]} * double{b[at + i]};
        }
    }
    for (; at < count; at++) {
        sums[0] += double{a[at]} * double{b[at]};
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void multiply(void* data) {
    const auto* product = static_cast<const Product*>(data);
    if (product->workspace != nullptr) {
        // What is not the handle's any more is a page of nobody's.
        *product->workspace = 1;
    }
    const auto k = static_cast<size_t>(product->k), half = k / 2;
    std::vector<float> rows(product->n * k), weights(k);
    for (int j = 0; j < product->n; j++) {
        const auto* row = product->b + static_cast<size_t>(j) * product->ldb;
        std::transform(row, row + k, &rows[j * k], emulation::float_of);
    }
    for (int i = 0; i < product->m; i++) {
        const auto* row = product->a + static_cast<size_t>(i) * product->lda;
        std::transform(row, row + k, weights.data(), emulation::float_of);
        for (int j = 0; j < product->n; j++) {
            const float* other = &rows[j * k];
            const double first = dot(weights.data(), other, half), second = dot(weights.data() + half, other + half, k - half);
            const double sum = product->exact ? first + second : double{rounded(first)} + double{rounded(second)};
            const size_t at = static_cast<size_t>(j) * product->ldc + i;
            if (product->wide) {
                static_cast<float*>(product->c)[at] = static_cast<float>(sum);
            } else {
                static_cast<bf16*>(product->c)[at] = round_bf16(static_cast<float>(sum));
            }
        }
    }
}

struct Handle {
    void* stream = nullptr;
    char* workspace = nullptr;
    bool used = false;
    int mode = 0;
};

bool has_context() {
    void* context = nullptr;
    cuCtxGetCurrent(&context);
    return context != nullptr;
}
bool is_captured(void* stream) {
    int status = 0;
    cuStreamIsCapturing(stream, &status);
    return status != 0;
}
// Which kernel the library chooses: by the size of the sums and outputs, and by how many rows there are, about.
std::string kernel_for(int m, int n, int k, bool wide) {
    int rows = 1;
    while (rows < n) {
        rows *= 2;
    }
    return "product " + std::to_string(m) + " x " + std::to_string(rows) + " x " + std::to_string(k) + (wide ? " wide" : "");
}

} // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
    if (!has_context()) {
        return NOT_INITIALIZED;
    }
    *handle = new Handle;
    return SUCCESS;
}
int cublasDestroy_v2(void* handle) {
    const auto* own = static_cast<Handle*>(handle);
    const bool dangling = own->workspace != nullptr && !cpp_fake_knows(own->workspace);
    delete own;
    if (dangling) {
        cpp_fake_wrong("the memory of a cuBLAS handle is given back before the handle");
        return MAPPING_ERROR;
    }
    return !has_context() ? NOT_INITIALIZED : cpp_fake_state() != 0 ? EXECUTION_FAILED : SUCCESS;
}
int cublasSetStream_v2(void* handle, void* stream) {
    auto* own = static_cast<Handle*>(handle);
    own->stream = stream;
    own->workspace = nullptr;
    return SUCCESS;
}
int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
    if (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 256 != 0 || bytes == 0) {
        return INVALID_VALUE;
    }
    if (!cpp_fake_knows(workspace)) {
        return INVALID_VALUE;
    }
    static_cast<Handle*>(handle)->workspace = static_cast<char*>(workspace);
    return SUCCESS;
}
int cublasSetMathMode(void* handle, int mode) {
    if ((mode & ~DISALLOW_REDUCED_PRECISION) != 0) {
        return NOT_SUPPORTED;
    }
    static_cast<Handle*>(handle)->mode = mode;
    return SUCCESS;
}

int cublasGemmEx(void* handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda, const void* b,
                 int b_type, int ldb, const void* beta, void* c, int c_type, int ldc, int compute, int) {
    void* stream = static_cast<Handle*>(handle)->stream;
    if (stream == nullptr || trans_a != TRANSPOSED || trans_b != AS_IT_IS || a_type != BF16 || b_type != BF16 || (c_type != BF16 && c_type != F32) ||
        compute != COMPUTE_F32 || *static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) {
        return NOT_SUPPORTED;
    }
    if (m <= 0 || n <= 0 || k <= 0 || lda < k || ldb < k || ldc < m) {
        return INVALID_VALUE;
    }
    auto* own = static_cast<Handle*>(handle);
    if (!has_context()) {
        return NOT_INITIALIZED;
    }
    const bool captured = is_captured(stream);
    if (own->workspace == nullptr && (captured || !own->used)) {
        cpp_fake_note("alloc");
        own->used = true;
        if (captured) {
            return ALLOC_FAILED;
        }
    }
    const std::string kernel = kernel_for(m, n, k, c_type == F32);
    if (cpp_fake_first(kernel.c_str()) != 0 && captured) {
        cpp_fake_wrong(("the kernel of a captured " + kernel + " is not loaded").c_str());
        return ALLOC_FAILED;
    }
    const auto numbers = [](const void* matrix) { return static_cast<const unsigned short*>(matrix); };
    cpp_fake_enqueue_owned(stream, multiply, new Product{m, n, k, numbers(a), numbers(b), c, lda, ldb, ldc, c_type == F32, (own->mode & DISALLOW_REDUCED_PRECISION) != 0, own->workspace},
                           [](void* product) { delete static_cast<Product*>(product); });
    return SUCCESS;
}
}
