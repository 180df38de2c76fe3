#!/usr/bin/env bash
# Passes the output of `cargo test` through and ends with the sum of its summaries. Fails if no test passed:
# a run that ran nothing proves nothing.
set -euo pipefail
# Line by line: mawk waits for a full buffer otherwise, and a reader for minutes.
interactive=()
if awk -W version 2>&1 </dev/null | grep -q mawk; then interactive=(-W interactive); fi
exec awk "${interactive[@]}" '
    { print; fflush() }
    /^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") skipped += $(i - 1)
        }
    }
    END {
        printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit passed == 0 || failed > 0
    }
'
