# Sourced by try.sh and test.sh: make .venv hold this checkout, and do nothing if it already does.
#
#   ready_venv .            ddplaunch and what it needs
#   ready_venv '.[dev]'     the same and the tools of its tests
#
# PYTHON names the interpreter (default: python3). Where packages come from is pip's own configuration
# (PIP_INDEX_URL, pip.conf); that is also how to get a CPU or another CUDA build of torch.

fail() {
  printf 'error: %s\n' "$1" >&2
  printf '  fix: %s\n' "$2" >&2
  exit 2
}

make_venv() {
  python=${PYTHON:-python3}
  command -v "$python" >/dev/null 2>&1 ||
    fail "there is no \`$python\` on PATH" "install Python 3.10 or newer, or name one: \`PYTHON=/path/to/python3 $0\`"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "\`$python\` is $("$python" -V 2>&1), ddplaunch needs 3.10 or newer" "name a newer one: \`PYTHON=python3.12 $0\`"
  "$python" -c 'import venv' 2>/dev/null ||
    fail "\`$python\` has no \`venv\` module" "on Debian and Ubuntu: \`apt-get install python3-venv\`"
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv --clear .venv
  elif "$python" -m pip --version >/dev/null 2>&1; then
    # Debian splits ensurepip off; pip itself can put a pip into the new environment.
    "$python" -m venv --clear --without-pip .venv
    "$python" -m pip --python .venv/bin/python install --quiet pip
  else
    fail "\`$python\` has neither \`ensurepip\` nor \`pip\`" "on Debian and Ubuntu: \`apt-get install python3-venv\`"
  fi
}

ready_venv() {
  .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv
  # The folder is part of the stamp: an environment that was moved with its checkout points to the old place.
  stamp=$(printf '%s ' "$PWD" && cat pyproject.toml constraints.txt | cksum)
  for mark in .venv/installed-dev .venv/installed; do
    [ "$1" = . ] || [ "$mark" = .venv/installed-dev ] || continue
    if [ "$(cat "$mark" 2>/dev/null)" = "$stamp" ]; then return; fi
  done
  echo "installing into .venv (the first time this downloads torch)" >&2
  # A folder on the path instead of setuptools' finder, whose imports would make every start of Python 25 ms longer.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
    --config-settings editable_mode=compat -e "$1"
  if [ "$1" = . ]; then mark=.venv/installed; else mark=.venv/installed-dev; fi
  printf '%s\n' "$stamp" >"$mark"
}
