// A stand-in for cuBLAS: the one product that the stages use, on the streams of the stand-in for the driver, summed in f64. Everything else is refused.
#include <cstddef>

#include "../ptx.hpp"
#include "hook.hpp"

namespace {

constexpr int SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15;
constexpr int TRANSPOSED = 1, AS_IT_IS = 0, F32 = 0, BF16 = 14, COMPUTE_F32 = 68;

// A product that has been asked for. Columns first: c[j][i] = sum over l of a[i][l] · b[j][l], where c has `ldc`, a `lda` and b `ldb` numbers from one
// column to the next.
struct Product {
    int m, n, k;
    const unsigned short *a, *b;
    void* c;
    int lda, ldb, ldc;
    bool wide;
};

void multiply(void* data) {
    const auto* product = static_cast<const Product*>(data);
    for (int j = 0; j < product->n; j++) {
        for (int i = 0; i < product->m; i++) {
            const auto* left = product->a + static_cast<size_t>(i) * product->lda;
            const auto* right = product->b + static_cast<size_t>(j) * product->ldb;
            double sum = 0;
            for (int l = 0; l < product->k; l++) {
                sum += double{emulation::float_of(left[l])} * double{emulation::float_of(right[l])};
            }
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
    bool used = false;
};

} // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
    *handle = new Handle;
    return SUCCESS;
}
int cublasDestroy_v2(void* handle) {
    delete static_cast<Handle*>(handle);
    return SUCCESS;
}
int cublasSetStream_v2(void* handle, void* stream) {
    static_cast<Handle*>(handle)->stream = stream;
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
    if (auto* own = static_cast<Handle*>(handle); !own->used) {
        // The library reserves memory at its first product.
        own->used = true;
        cpp_fake_note("alloc");
    }
    const auto numbers = [](const void* matrix) { return static_cast<const unsigned short*>(matrix); };
    cpp_fake_enqueue_owned(stream, multiply, new Product{m, n, k, numbers(a), numbers(b), c, lda, ldb, ldc, c_type == F32},
                           [](void* product) { delete static_cast<Product*>(product); });
    return SUCCESS;
}
}
