#!/usr/bin/env bash
# every CUDA kernel: machine code for three generations of GPUs without spills, its results by emulation, and the device that runs it
source "$(dirname "$0")/../lib.sh"
need c++ g++
need python3 python3
python3 -c 'import venv, ensurepip' 2>/dev/null || need pip3 python3-venv

# NVIDIA's licence lets the compiler be used, not passed on: it is fetched (90 MB) and kept in the cache.
nvrtc=$cache/nvrtc-13.0.88
if [ ! -f "$nvrtc/complete" ]; then
    run python3 -m venv --clear "$nvrtc"
    run "$nvrtc/bin/pip" install --quiet --disable-pip-version-check nvidia-cuda-nvrtc==13.0.88
    touch "$nvrtc/complete"
fi
libraries=$(dirname "$(find "$nvrtc/lib" -name libnvrtc.so.13)")

run python3 scripts/compile_kernels.py --nvrtc "$libraries" sm_80 sm_90 sm_100
# The negative control: kernels that must make do with fewer registers than they need are found out.
rm -rf target/ci/spilling
cp -r cpp-exec-cuda/kernels target/ci/spilling
sed -i 's/DIM < 96 ? 3 : 2/6/' target/ci/spilling/attention_prefill.cu
if python3 scripts/compile_kernels.py --nvrtc "$libraries" --kernels target/ci/spilling sm_90 >target/ci/spilling.txt; then
    echo "kernels that spill pass"
    exit 1
fi
run grep -q 'attention_prefill_128 for sm_90: .*spills' target/ci/spilling.txt

run bash cpp-exec-cuda/emulation/build.sh target/ci/emulation
run target/ci/emulation/kernels-test 20
run python3 cpp-exec-cuda/emulation/mutants.py target/ci/emulation 20

# The device itself: unmodified, on stand-ins for driver, cuBLAS and NCCL that run the emulated kernels; NVRTC is the real one.
run bash cpp-exec-cuda/emulation/driver/build.sh target/ci/driver
export CPP_CUDA_LIB_DIR=$PWD/target/ci/driver:$libraries CPP_CUDA_DEVICE=1 NCCL_MULTI_RANK_GPU_ENABLE=1
run cargo test --quiet --locked -p cpp-exec-cuda --features cuda --lib --test cuda_device --test cuda_rounding --test cuda_pipeline --test cuda_streams --test cuda_edges --test cuda_cli

# A fourth of what orders batches on the device, left out one at a time; the whole list takes minutes (cpp-exec-cuda/emulation/README.md).
run python3 cpp-exec-cuda/emulation/faults.py --seeds 6 --places 8
