# What the steps share; each sources it first. Leaves the shell strict and at the root of the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tools and toolchains that are fetched once and kept between runs.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cpp-sched-ci
mkdir -p "$cache" target/ci

# A command, shown before it runs.
run() {
    printf '+ %s\n' "$*" >&2
    "$@"
}

# need COMMAND PACKAGE: installs the Debian package if there is no such command.
need() {
    command -v "$1" >/dev/null && return
    echo "$1 is missing: installing the package $2"
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null
}

# need_cargo COMMAND CRATE VERSION: installs a cargo subcommand from source if it is missing. Compiles quickly rather than for speed.
need_cargo() {
    [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/$1" ] && return
    echo "$1 is missing: installing $2 $3"
    CARGO_TARGET_DIR=$cache/tools CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=0 cargo install --quiet --locked "$2" --version "$3"
}

# The packages of the workspace and their features, "package features...", as cargo tells them.
packages() {
    need python3 python3 >&2
    cargo metadata --no-deps --format-version 1 --locked | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    print(package["name"], *sorted(set(package["features"]) - {"default"}))'
}
