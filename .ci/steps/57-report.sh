#!/usr/bin/env bash
# the HTML report in a real browser: every section, no console message, nothing requested, numbers and colours as they should be
source "$(dirname "$0")/../lib.sh"
need python3 python3
if ! need chromium chromium; then
    echo "left out: there is no chromium here, and Debian's cannot be installed"
    exit 0
fi

run cargo build --quiet --release --locked --bin cpp-sim
folder=target/ci/report
rm -rf "$folder"
mkdir -p "$folder"
workload=(--synthetic --requests 400 --rate 3 --input-mean 4096 --input-sigma 1.4 --output-mean 100 --profile demo --seed 1 --slo-ttft 20)
run target/release/cpp-sim run --mode cpp "${workload[@]}" --html "$folder/run.html" --json "$folder/run.json" >/dev/null
run target/release/cpp-sim compare "${workload[@]}" --html "$folder/compare.html" --json "$folder/compare.json" >/dev/null
run python3 .ci/html_report.py "$folder"
