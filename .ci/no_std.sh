#!/usr/bin/env bash
# Proves that cpp-sched and everything below it is no_std: it is built against a sysroot that holds core, alloc and compiler_builtins alone, so
# that std cannot be found, by whatever way it is asked for. The controls show that the proof can fail: a crate that uses std, and a no_std
# crate with a dependency that uses std, must not build the same way; the same crate without std must.
#
# --target keeps RUSTFLAGS from build scripts and derive macros, which run on this machine and may use std.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target=$(rustc -vV | sed -n 's/^host: //p')
sysroot=$(rustc --print sysroot)
# A folder for each compiler: another rustc cannot read these libraries.
bare=$PWD/target/ci/bare-sysroot
libraries=$bare/lib/rustlib/$target/lib
rm -rf "$bare"
mkdir -p "$libraries"
for crate in core alloc compiler_builtins; do
    ln -s "$sysroot/lib/rustlib/$target/lib/lib$crate"-*.r* "$libraries/"
done

# The release profile leaves build scripts and macros unoptimised, which is the greater part of the work.
bare() {
    local verb=$1
    shift
    RUSTFLAGS="--sysroot=$bare" cargo "$verb" --quiet --release --target "$target" --target-dir target/ci/no-std "$@"
}

for features in "" serde journal; do
    run bare check --locked -p cpp-sched --no-default-features --features "$features"
done
run bare build --locked -p cpp-sched --no-default-features

# The controls: small packages outside of the workspace.
controls=$PWD/target/ci/no-std-controls
rm -rf "$controls"
control() {
    mkdir -p "$controls/$1/src"
    printf '[package]\nname = "%s"\nedition = "2024"\n[workspace]\n[dependencies]\n%s\n' "$1" "$3" >"$controls/$1/Cargo.toml"
    printf '%s\n' "$2" >"$controls/$1/src/lib.rs"
}
control clean '#![no_std] extern crate alloc; pub fn f() -> alloc::vec::Vec<u8> { alloc::vec::Vec::new() }' ''
control uses-std 'use std::collections::HashMap; pub fn f() -> HashMap<u8, u8> { HashMap::new() }' ''
control names-std '#![no_std] extern crate std; pub fn f() -> std::time::Duration { std::time::Duration::ZERO }' ''
# Declared and never used is enough to fail: cargo builds it all the same.
control depends-on-std '#![no_std] pub fn f() {}' 'uses-std = { path = "../uses-std" }'

run bare build --manifest-path "$controls/clean/Cargo.toml"
for name in uses-std names-std depends-on-std; do
    if bare build --manifest-path "$controls/$name/Cargo.toml" 2>"$controls/$name.log"; then
        echo "control $name builds, though it needs std: this proof proves nothing"
        exit 1
    fi
    # It must fail for this reason, not for a slip in the control itself.
    grep -qE "(can't find crate for|unresolved module or unlinked crate|use of undeclared crate or module|unresolved import) .?std" "$controls/$name.log" ||
        { cat "$controls/$name.log"; echo "control $name fails, but not for want of std"; exit 1; }
    echo "control $name does not build: $(grep -m1 '^error' "$controls/$name.log")"
done
echo "cpp-sched builds without std, alone, with serde and with journal"
