#!/bin/sh
# Makes the virtual environment that the Makefile uses: bootstrap.sh FOLDER.
#
# Needs python3 (3.10 or later). Whatever else is missing comes from apt-get if we are root; what cannot be had is left
# out by name, counted, and said again before the tests, which skip what needs it.
set -eu

venv=$1
python=${PYTHON:-python3}
torch=torch==2.13.0 # as in pyproject.toml
. "$(dirname "$0")/apt.sh"

fail() {
    say "make: $*" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || system_package python3 || fail "python3 is missing (Debian: apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "tilegrad needs Python 3.10 or later, this is $("$python" --version)"

command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || system_package gcc libc6-dev ||
    leave_out "a C compiler" "nothing generated can run (Debian: apt-get install gcc libc6-dev)"
command -v clang >/dev/null 2>&1 || system_package clang ||
    leave_out clang "the tests that compile generated C with clang are skipped (Debian: apt-get install clang)"

if [ ! -x "$venv/bin/python" ]; then
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || system_package python3-venv ||
        fail "python3 has no venv module (Debian: apt-get install python3-venv)"
    say "creating $venv"
    "$python" -m venv "$venv"
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

say "installing tilegrad and what its tests need"
pip install --quiet --editable ".[test]" || fail "pip could not install tilegrad (its words are above)"
if ! "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then
    say "installing $torch"
    pip install --quiet "$torch" ||
        leave_out "$torch" "training is verified against shipped goldens or finite differences; the tests against PyTorch are skipped"
fi
if ! "$venv/bin/python" -c 'import pyopencl, sys; sys.exit(not pyopencl.get_platforms())' >/dev/null 2>&1; then
    say "installing pyopencl and PoCL"
    pip install --quiet --editable ".[opencl]" ||
        leave_out "pyopencl and pocl-binary-distribution" "the devices opencl:N cannot be used, and their tests are skipped"
fi

report_left_out "$venv/.left-out"
