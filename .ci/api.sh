#!/usr/bin/env bash
# The public API of each library as text, one item a line, against .ci/api/: what a user can name, and every trait that a type has.
#
#   bash .ci/api.sh             compares; exit 1 with the difference if something has changed
#   bash .ci/api.sh --accept    writes the files anew
#
# rustdoc tells it as JSON, which is not stable: a compiler whose form the tool does not read is said so, and nothing is compared.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3 python3
need_cargo cargo-public-api cargo-public-api 0.52.0
readable=57 # the form that this version of the tool reads

accept=${1-}
json=target/ci/api/doc
result=0
for package in cpp-sched cpp-exec-mock cpp-exec-cuda; do
    # What a program of the house offers as a library: its items, without the traits that are derived.
    omit=-sss
    [ $package = cpp-sched ] && omit=-ss
    RUSTC_BOOTSTRAP=1 run cargo rustdoc --quiet --locked --lib -p $package --all-features --target-dir target/ci/api -- -Z unstable-options --output-format json --cap-lints allow
    file=$json/${package//-/_}.json
    written=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["format_version"])' "$file")
    if [ "$written" != $readable ]; then
        echo "left out: $(rustc --version) writes form $written, cargo-public-api 0.52.0 reads form $readable"
        exit 0
    fi
    cargo public-api --rustdoc-json "$file" $omit --color never | grep -v 'core::marker::StructuralPartialEq for' >target/ci/api/$package.txt
    [ -s target/ci/api/$package.txt ] || { echo "$package has no public API"; exit 1; }
    if [ "$accept" = --accept ]; then
        run cp target/ci/api/$package.txt .ci/api/$package.txt
    elif diff -U0 .ci/api/$package.txt target/ci/api/$package.txt >target/ci/api/difference.txt; then
        echo "$package: $(wc -l <.ci/api/$package.txt) items, as listed"
    else
        grep -v '^@@' target/ci/api/difference.txt
        echo "the public API of $package has changed; if that is meant: bash .ci/api.sh --accept, and a line in CHANGELOG.md"
        result=1
    fi
done
exit $result
