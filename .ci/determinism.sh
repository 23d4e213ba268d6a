#!/usr/bin/env bash
# Equal inputs give equal decisions in every build of the kernel: debug (with assertions and overflow checks) and optimised, without features and with
# each, and where the compiler has such a target, with 32-bit pointers. One process each; the first build runs in two.
# The kernel has no feature `std`: it is no_std always (.ci/no_std.sh proves it).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

runs=${DETERMINISM_RUNS:-300}
# Compiled for speed of the build, not of the program.
quick=(--config 'profile.release.lto="off"' --config profile.release.codegen-units=16 --config profile.release.debug=0 --config profile.dev.debug=0)
first=
digest() {
    local name=$1 answer
    shift
    answer=$(run cargo run --quiet --locked "${quick[@]}" --target-dir target/ci/determinism -p cpp-sched --example digest "$@" -- "$runs")
    printf '%s  %s\n' "$answer" "$name"
    [ -n "$first" ] || first=$answer
    [ "$answer" = "$first" ] || { echo "$name decides otherwise"; exit 1; }
}

digest "debug, no features" --no-default-features
digest "debug, no features, once more" --no-default-features
digest "optimised, no features" --release --no-default-features
digest "optimised, serde" --release --features serde
digest "debug, serde and journal" --all-features
narrow=i686-unknown-linux-musl
if [ -d "$(rustc --print sysroot)/lib/rustlib/$narrow" ] || { command -v rustup >/dev/null && rustup target add $narrow 2>/dev/null; }; then
    digest "optimised, 32-bit pointers" --release --no-default-features --target $narrow
else
    echo "left out: 32-bit pointers, as there is no target $narrow here"
fi
# The control: another number of runs is another digest.
runs=$((runs - 1))
answer=$(cargo run --quiet --locked "${quick[@]}" --target-dir target/ci/determinism -p cpp-sched --example digest --no-default-features -- "$runs")
[ "$answer" != "$first" ] || { echo "the digest does not depend on what is run"; exit 1; }
