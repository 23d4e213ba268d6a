#!/usr/bin/env bash
# kernel, scenarios and property tests once more, optimised and without debug assertions
source "$(dirname "$0")/../lib.sh"

run cargo test --profile quick --locked -p cpp-sched -p cpp-sched-tests --lib --tests
