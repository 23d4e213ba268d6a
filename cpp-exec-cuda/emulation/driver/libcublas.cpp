// A stand-in for cuBLAS: the one product that the stages use, on host memory, summed in f64. Everything else is refused.
#include <cstddef>

#include "../ptx.hpp"

namespace {

constexpr int SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15;
constexpr int TRANSPOSED = 1, AS_IT_IS = 0, F32 = 0, BF16 = 14, COMPUTE_F32 = 68;

} // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
    *handle = reinterpret_cast<void*>(1);
    return SUCCESS;
}
int cublasDestroy_v2(void*) { return SUCCESS; }
int cublasSetStream_v2(void*, void*) { return SUCCESS; }

// Columns first: c[j][i] = sum over l of a[i][l] · b[j][l], where c has `ldc`, a `lda` and b `ldb` numbers from one column to the next.
int cublasGemmEx(void*, int trans_a, int trans_b, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda, const void* b, int b_type,
                 int ldb, const void* beta, void* c, int c_type, int ldc, int compute, int) {
    if (trans_a != TRANSPOSED || trans_b != AS_IT_IS || a_type != BF16 || b_type != BF16 || (c_type != BF16 && c_type != F32) ||
        compute != COMPUTE_F32 || *static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) {
        return NOT_SUPPORTED;
    }
    if (m <= 0 || n <= 0 || k <= 0 || lda < k || ldb < k || ldc < m) {
        return INVALID_VALUE;
    }
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < m; i++) {
            const auto* left = static_cast<const unsigned short*>(a) + static_cast<size_t>(i) * lda;
            const auto* right = static_cast<const unsigned short*>(b) + static_cast<size_t>(j) * ldb;
            double sum = 0;
            for (int l = 0; l < k; l++) {
                sum += double{emulation::float_of(left[l])} * double{emulation::float_of(right[l])};
            }
            const size_t at = static_cast<size_t>(j) * ldc + i;
            if (c_type == F32) {
                static_cast<float*>(c)[at] = static_cast<float>(sum);
            } else {
                static_cast<bf16*>(c)[at] = round_bf16(static_cast<float>(sum));
            }
        }
    }
    return SUCCESS;
}
}
