#!/usr/bin/env bash
# the demo command of the README, word for word, twice with the same outcome; and the kernel's examples
source "$(dirname "$0")/../lib.sh"

command=$(grep -m1 -oE '^cargo run[^#]*' README.md | sed 's/ *$//')
[ -n "$command" ] || { echo "README.md names no demo command at the beginning of a line"; exit 1; }
# shellcheck disable=SC2086 # words, as a shell would read the line
run $command | tee target/ci/demo-1.txt
[ -s target/ci/demo-1.txt ] || { echo "the demo printed nothing"; exit 1; }
run cargo run --quiet --release >target/ci/demo-2.txt
run diff target/ci/demo-1.txt target/ci/demo-2.txt

for example in cpp-sched/examples/*.rs; do
    run cargo run --quiet --locked -p cpp-sched --example "$(basename "$example" .rs)"
done
