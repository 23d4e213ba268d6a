#!/usr/bin/env bash
# the test command of the README, word for word
source "$(dirname "$0")/../lib.sh"

command=$(grep -m1 -oE '^cargo test[^#]*' README.md | sed 's/ *$//')
[ -n "$command" ] || { echo "README.md names no test command at the beginning of a line"; exit 1; }
# shellcheck disable=SC2086 # words, as a shell would read the line
run $command
