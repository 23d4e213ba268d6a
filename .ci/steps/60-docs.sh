#!/usr/bin/env bash
# the documentation with warnings denied, as users see it and with private items
source "$(dirname "$0")/../lib.sh"
export RUSTDOCFLAGS="-D warnings"

run cargo doc --quiet --locked --no-deps -p cpp-sched
run cargo doc --quiet --locked --no-deps --all-features -p cpp-sched -p cpp-exec-mock -p cpp-exec-cuda -p cpp-sched-tests --lib
run cargo doc --quiet --locked --no-deps --all-features --document-private-items -p cpp-sched -p cpp-exec-mock -p cpp-exec-cuda -p cpp-sched-tests
