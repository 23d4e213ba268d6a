#!/usr/bin/env bash
# every build of the kernel decides the same: debug and optimised, with and without features, 64- and 32-bit pointers
source "$(dirname "$0")/../lib.sh"
run bash .ci/determinism.sh
