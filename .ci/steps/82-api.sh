#!/usr/bin/env bash
# the public API is the one that is listed in .ci/api; and since the last tag nothing has broken that its version promises
source "$(dirname "$0")/../lib.sh"

run bash .ci/api.sh
run bash .ci/semver.sh
