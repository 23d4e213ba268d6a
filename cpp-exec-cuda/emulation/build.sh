#!/usr/bin/env bash
# Builds the tests of the emulated kernels: bash cpp-exec-cuda/emulation/build.sh OUT
#
# OUT is a folder for objects and the programme `kernels-test`. Needs a C++17 compiler (CXX, or c++). KERNELS names another folder of kernels; TESTS the
# files of tests to build, if not all; COMMON a folder where this has been done before, whose objects of all else are taken
# (then the build is quicker, without the checks of undefined behaviour).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1
mkdir -p "$out"
flags=(-std=c++17 -O1 -g1 -Wall -Wextra -Wno-unknown-pragmas -I"${KERNELS:-$here/../kernels}")
files=()
objects=()
if [ -n "${COMMON:-}" ]; then
    objects=("$COMMON/fibres.o" "$COMMON/main.o")
else
    flags+=(-fsanitize=undefined -fno-sanitize-recover=undefined)
    files=("$here/fibres.cpp" "$here/tests/main.cpp")
fi
for test in ${TESTS:-rows sampling prefill decode}; do
    files+=("$here/tests/$test.cpp")
done
jobs=()
for file in "${files[@]}"; do
    object=$out/$(basename "$file" .cpp).o
    objects+=("$object")
    "${CXX:-c++}" "${flags[@]}" -c "$file" -o "$object" &
    jobs+=($!)
done
for job in "${jobs[@]}"; do
    wait "$job"
done
"${CXX:-c++}" -fsanitize=undefined "${objects[@]}" -o "$out/kernels-test"
