#!/usr/bin/env bash
# the kernel builds with the oldest Rust that its manifest promises
source "$(dirname "$0")/../lib.sh"

version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' cpp-sched/Cargo.toml)
[ -n "$version" ] || { echo "cpp-sched/Cargo.toml has no rust-version"; exit 1; }

# Sets $compiler to a rustc of that version: rustup's, or Debian's, unpacked into the cache without being installed.
find_compiler() {
    if command -v rustup >/dev/null && compiler=$(rustup which --toolchain "$version" rustc 2>/dev/null); then
        return 0
    fi
    local root=$cache/rustc-$version
    compiler=$root/rustc
    [ -x "$compiler" ] && return 0
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    apt-get update -qq >/dev/null 2>&1 || true
    local deb
    deb=$(apt-cache madison rustc-web 2>/dev/null | awk -v v="$version." '$3 ~ "^" v { print $3; exit }')
    [ -n "$deb" ] || return 1
    rm -rf "$root"
    mkdir -p "$root"
    # The loader tells which LLVM the compiler was linked with.
    (cd "$root" && apt-get download -qq "rustc-web=$deb" "libstd-rust-web-$version=$deb" "libstd-rust-web-dev=$deb" &&
        for file in *.deb; do dpkg-deb -x "$file" .; done && rm -- *.deb) >/dev/null 2>&1 || return 1
    local libraries=$root/usr/lib/$(uname -m)-linux-gnu llvm
    llvm=$(ldd "$libraries"/librustc_driver-*.so | sed -n 's/^\s*libLLVM\.so\.\([0-9]*\).*not found.*/\1/p')
    [ -z "$llvm" ] || (cd "$root" && apt-get download -qq "libllvm$llvm" && dpkg-deb -x libllvm*.deb . && rm -- *.deb) >/dev/null 2>&1 || return 1
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$root/usr/bin/rustc" >"$compiler.new"
    chmod +x "$compiler.new"
    "$compiler.new" --version >/dev/null && mv "$compiler.new" "$compiler"
}

if find_compiler; then
    run "$compiler" --version
    export RUSTC=$compiler
    for features in "" serde journal; do
        run cargo check --quiet --release --locked -p cpp-sched --target-dir target/ci/msrv --no-default-features --features "$features"
    done
else
    echo "no rustc $version to be had here: checked instead with $(rustc --version), and clippy::incompatible_msrv for what is newer than $version"
    run cargo clippy --quiet --locked -p cpp-sched --all-features -- -D warnings -D clippy::incompatible_msrv
fi
