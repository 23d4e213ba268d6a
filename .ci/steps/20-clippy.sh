#!/usr/bin/env bash
# clippy with warnings denied: each crate alone, without features, with each feature, with all
source "$(dirname "$0")/../lib.sh"

# One crate at a time: in a build of the whole workspace features are united, which hides what is missing.
packages >target/ci/packages.txt
result=0
while read -r package features; do
    check() {
        run cargo clippy --quiet --locked -p "$package" --all-targets --no-deps "$@" -- -D warnings -D clippy::todo -D clippy::unimplemented -D clippy::dbg_macro </dev/null || result=1
    }
    check
    for feature in $features; do
        check --no-default-features --features "$feature"
    done
    [ -z "$features" ] || check --no-default-features
    [ -z "$features" ] || check --all-features
done <target/ci/packages.txt
exit $result
