#!/usr/bin/env bash
# the kernel and all that it depends on build without std, and crates that need std do not
source "$(dirname "$0")/../lib.sh"
run bash .ci/no_std.sh
