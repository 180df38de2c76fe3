#!/usr/bin/env bash
# Passes the output of `cargo test` through and ends with the sum of its summaries. Fails if no test passed:
# a run that ran nothing proves nothing.
set -euo pipefail
exec awk '
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
