#!/bin/sh
# Set up .venv with the development tools if needed, then check everything: format, lint, types, layers, tests.
#
#   scripts/test.sh [--quick] [PYTEST-OPTION...]
#   scripts/test.sh --quick              without the tests that start torchrun or other programs
#   scripts/test.sh tests/test_guides.py
set -eu
cd "$(dirname "$0")/.."
. scripts/venv.sh
ready_venv '.[dev]'
PATH=$PWD/.venv/bin:$PATH
export PATH

# Six workers, because ranks mostly wait: four left two CPUs idle for a quarter of the time. What starts no ranks hardly
# waits, and each worker collects all tests.
workers=6
if [ "${1-}" = --quick ]; then
  shift
  workers=$(($(nproc) + 1))
  [ "$workers" -le 4 ] || workers=4
  set -- -m 'not slow' "$@"
fi

# Every check runs, so that one look shows all that is wrong.
failed=
check() {
  "$@" || failed="$failed \`$*\`"
}
check ruff format --check .
check ruff check .
check mypy
check lint-imports
status=0
# A file's tests stay together, for some of them share a launch or a port, and files go in the order that
# tests/conftest.py gives them.
python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@" || status=$?
if [ -n "$failed" ]; then
  echo "error: failed:$failed" >&2
  [ "$status" != 0 ] || status=1
fi
exit "$status"
