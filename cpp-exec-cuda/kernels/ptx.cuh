// Everything that is PTX: conversions, tensor core products, loads of fragments, asynchronous copies.
//
// Kernels use these functions and have no assembly of their own. emulation/ptx.hpp has a twin of each, which does on the processor what the PTX
// ISA says that the instruction does, fragment layouts included; so a kernel that uses a layout wrongly is wrong there too.
// Source of all layouts: PTX ISA 9.0, "Matrix multiply-accumulate operation using mma instruction" and "ldmatrix".
// The least architecture that has them all is sm_80.
#pragma once

// A number of 16 bits: the upper half of an f32.
struct bf16 {
    unsigned short bits;
};

// Rounds to the nearest bf16, ties to even; a NaN becomes 0x7fff.
__device__ __forceinline__ bf16 round_bf16(float number) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(number));
    return result;
}

// Two of them in one register, `low` in the lower half.
__device__ __forceinline__ unsigned round_bf16x2(float low, float high) {
    unsigned result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// 2 to the power of `number`, off by at most 2^-22 of the result; 0 for -infinity.
__device__ __forceinline__ float exp2_fast(float number) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(number));
    return result;
}

// sum += a · b for a warp's 16 x 16 matrix a and 16 x 8 matrix b. With g = lane / 4 and c = lane % 4 a lane holds
//   a[0]: row g,     columns 2c, 2c+1      a[2]: row g,     columns 2c+8, 2c+9
//   a[1]: row g + 8, columns 2c, 2c+1      a[3]: row g + 8, columns 2c+8, 2c+9
//   b0: rows 2c, 2c+1 of column g          b1: rows 2c+8, 2c+9 of column g
//   sum[0], sum[1]: row g, columns 2c, 2c+1       sum[2], sum[3]: row g + 8, the same columns
__device__ __forceinline__ void multiply_16x8x16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned shared_address(const void* place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Four 8 x 8 matrices out of shared memory: lane l gives the address of row l % 8 (16 bytes) of matrix l / 8, and gets of each matrix
// the two numbers of row g at columns 2c, 2c+1.
__device__ __forceinline__ void load_matrices(unsigned (&out)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, transposed: a lane gets the two numbers of column g at rows 2c, 2c+1.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&out)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Begins to copy 16 bytes from global into shared memory; if they are not `wanted`, zeros are written and nothing is read.
__device__ __forceinline__ void copy_async(bf16* to, const bf16* from, bool wanted) {
    const int bytes = wanted ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// Makes a group of the thread's copies since the last group.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all of the thread's groups but the last PENDING are there. Other threads see them after a barrier.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// An array in shared memory, aligned for 16 bytes.
#define SHARED_ARRAY(type, name, size) __shared__ __align__(16) type name[size]
