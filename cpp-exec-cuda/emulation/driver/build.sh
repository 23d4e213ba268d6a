#!/usr/bin/env bash
# Builds the stand-ins for the CUDA driver, cuBLAS and NCCL: bash cpp-exec-cuda/emulation/driver/build.sh OUT
#
# OUT gets libcuda.so.1, libcublas.so.13 and libnccl.so.2. Tests of the device find them by CPP_CUDA_LIB_DIR=OUT:FOLDER_OF_NVRTC.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1
mkdir -p "$out"
flags=(-std=c++17 -O2 -g1 -Wall -Wextra -Wno-unknown-pragmas -fPIC -shared -I"$here/../../kernels")
"${CXX:-c++}" "${flags[@]}" "$here/libcuda.cpp" "$here/../fibres.cpp" -pthread -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1"
# It needs libcuda.so.1, and gets the one that is loaded.
"${CXX:-c++}" "${flags[@]}" "$here/libcublas.cpp" "$here/../fibres.cpp" -L"$out" -l:libcuda.so.1 -Wl,-soname,libcublas.so.13 -o "$out/libcublas.so.13"
"${CXX:-c++}" "${flags[@]}" "$here/libnccl.cpp" -pthread -L"$out" -l:libcuda.so.1 -Wl,-soname,libnccl.so.2 -o "$out/libnccl.so.2"
