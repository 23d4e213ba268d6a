#!/usr/bin/env bash
# rustfmt agrees, the lock file is up to date, every script parses, no link of a page in the repository leads nowhere
source "$(dirname "$0")/../lib.sh"

run cargo fmt --all --check
run cargo metadata --format-version 1 --locked >/dev/null
for script in .ci/run .ci/*.sh .ci/steps/*.sh; do
    run bash -n "$script"
done

dead=0
while IFS=: read -r page link; do
    target=${link#](}
    target=${target%)}
    target=${target%%#*}
    case $target in '' | http://* | https://* | mailto:*) continue ;; esac
    [ -e "$(dirname "$page")/$target" ] && continue
    echo "$page: the link to $target leads nowhere"
    dead=1
done < <(git ls-files -co --exclude-standard '*.md' | xargs grep -oHE '\]\([^) ]+\)')
[ $dead -eq 0 ]
