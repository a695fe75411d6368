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

if [ "${1-}" = --quick ]; then
  shift
  set -- -m 'not slow' "$@"
fi

ruff format --check .
ruff check .
mypy
lint-imports
exec python -m pytest "$@"
