#!/usr/bin/env bash
# What a machine with a GPU and no network lacks, in a folder that can be carried there (under
# 64 MiB), and the command that sets jitshape up from it.
#
#   here:   benchmarks/gpu/carry.sh pack            fills .gpu-wheels with cp312 wheels
#   there:  benchmarks/gpu/carry.sh run [ARGS]      installs them, builds, runs the suite
#
# There: CPython 3.12 with torch 2.11, triton 3.6 and what these bring along.
set -euo pipefail
cd "$(dirname "$0")/../.."
WHEELS=.gpu-wheels
# sympy, networkx, jinja2, filelock and numpy come with torch; kernels for CPUs alone need llvmlite
NEEDED=(bytecode click rich markdown-it-py mdurl pygments msgspec setuptools wheel pytest
        iniconfig pluggy packaging hypothesis sortedcontainers expecttest pytest-timeout)

case "${1:-}" in
pack)
    mkdir -p "$WHEELS"
    python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform any \
        -d "$WHEELS" "${NEEDED[@]}"
    du -sm "$WHEELS"
    test "$(du -sm "$WHEELS" | cut -f1)" -lt 64
    ;;
run)
    shift
    for name in "${NEEDED[@]}"; do
        python3 -m pip install -q --no-index --no-deps --find-links "$WHEELS" "$name" \
            --break-system-packages 2> /dev/null || echo "not installed: $name" >&2
    done
    python3 setup.py -q build_ext --inplace
    exec python3 -m benchmarks.gpu.suite "$@"
    ;;
*)
    sed -n '2,10p' "$0"
    exit 2
    ;;
esac
