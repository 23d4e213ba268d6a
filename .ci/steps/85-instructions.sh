#!/usr/bin/env bash
# instructions of a step of the kernel, counted by callgrind, against .ci/instructions.txt: 5 % more fails
source "$(dirname "$0")/../lib.sh"
need python3 python3
need valgrind valgrind

run cargo build --release --locked -p cpp-sched-tests --example instructions
run python3 .ci/instructions.py target/release/examples/instructions
