#!/usr/bin/env bash
# licences, sources and bans of all dependencies: deny.toml
source "$(dirname "$0")/../lib.sh"
need_cargo cargo-deny cargo-deny 0.20.2

run cargo deny --all-features --locked check bans licenses sources
