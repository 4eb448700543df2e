#!/bin/sh
# Runs the test programs in tests/ and the examples in examples/ on a GPU; needs NVIDIA's driver, and NVRTC for the tests of kernels.
#   ./run.sh              all tests
#   ./run.sh --sanitize   under compute-sanitizer's memcheck, and those of pagelock-cuda under its initcheck too
# The last line counts. It succeeds if no test failed.
set -eu
cd "$(dirname "$0")"
export REQUIRE_GPU=1

sanitizer=
case "${1-}" in
    '') ;;
    # Some tests make calls of the driver fail on purpose.
    --sanitize) sanitizer="compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 86" ;;
    *) echo "test-gpu: unknown argument $1; there is --sanitize"; exit 2 ;;
esac

if ! answer=$(tests/cuda-it --exact tools::there_is_a_gpu 2>&1); then
    missing=$(echo "$answer" | sed -n 's/.*REQUIRE_GPU=1, but //p')
    echo "test-gpu: cannot run: ${missing:-$answer}"
    exit 1
fi
if [ -n "$sanitizer" ] && ! command -v compute-sanitizer >/dev/null; then
    echo "test-gpu: cannot run: no compute-sanitizer in PATH; it comes with the CUDA toolkit"
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in tests/*; do
    echo "── $program"
    { $sanitizer "$program" --show-output 2>&1 && code=0 || code=$?; echo "ended with $code"; } | tee -a "$log"
done

# Examples check what they promise, in a folder of their own; each counts as a test.
here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$log" "$work"' EXIT
for program in examples/*; do
    [ -z "$sanitizer" ] && [ -x "$program" ] || continue
    echo "── $program"
    {
        if (cd "$work" && PAGELOCK_OFFLINE=1 "$here/$program" --quick --device cuda) 2>&1; then
            echo "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured"
        else
            echo "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured"
        fi
    } | tee -a "$log"
done

# What the random programs read on purpose, buffers that nobody wrote, is all that initcheck would have to say of them.
if [ -n "$sanitizer" ]; then
    for program in tests/cuda-*; do
        echo "── $program, initcheck"
        { compute-sanitizer --tool initcheck --report-api-errors no --error-exitcode 86 "$program" --show-output \
            --skip random_programs 2>&1 && code=0 || code=$?; echo "ended with $code"; } | tee -a "$log"
    done
fi

# A program that fails without a failed test crashed, or the sanitizer complained.
awk '
    /^SKIPPED: / { skipped++ }
    /^test result: / { passed += $4; failed += $6; ignored += $8; here = $6 }
    /^ended with / { if ($3 != 0 && here == 0) failed++; here = 0 }
    END {
        printf "test-gpu: %d passed, %d failed, %d skipped\n", passed - skipped, failed, skipped + ignored
        exit (failed > 0)
    }
' "$log"
