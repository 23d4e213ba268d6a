#!/usr/bin/env bash
# a short fuzz run of every target, from its corpus (FUZZ_SECONDS each, 10 if not set)
source "$(dirname "$0")/../lib.sh"
need c++ g++
need_cargo cargo-fuzz cargo-fuzz 0.13.2

# Stable, told to accept what coverage needs; without a sanitizer, since neither kernel nor targets have unsafe code. CONTRIBUTING.md has the long run.
# Built for a short run: a thin link of each target would take longer than all of them run.
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0
run cargo fuzz build -s none
targets=$(cargo fuzz list)
result=0
for target in $targets; do
    # New inputs go to a folder of their own, so that the run leaves the work tree as it was.
    found=target/ci/corpus/$target
    mkdir -p "$found" "fuzz/corpus/$target"
    run cargo fuzz run -s none "$target" "$found" "fuzz/corpus/$target" -- -max_total_time="${FUZZ_SECONDS:-10}" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        2>&1 | grep -vE '^#[0-9]+\s+(NEW|REDUCE|RELOAD|pulse)' || result=1
done
exit $result
