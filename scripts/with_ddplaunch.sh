# Sourced by the launch scripts beside it: refuse wrong arguments, or become ddplaunch.
# shellcheck shell=bash
#
#   take MOST "$@"         sets `positions` to up to MOST words before the first option, `rest` to what follows
#   split "$@"             sets `name`, `value` and `width` of an option: `--name value` is 2 words wide, `--name=value` 1
#   whole NAME VALUE [0]   a whole number above 0 (or 0 as well), or the script ends
#   processes NAME VALUE   the same, or `auto`
#   become_ddplaunch NPROC OPTION... -- SCRIPT ARG...
#
# DDPLAUNCH_OPTIONS holds options of ddplaunch, quoted as in a shell; they come before those of the script.
# Each line of `called_as` is an option of ddplaunch and what this script has in its place: findings say that.

case $0 in
  */*) self=$0 && { [ -x "$0" ] || self="bash $0"; } ;;
  *) self="bash $0" ;;
esac

fail() {
  printf 'error: %s\n  fix: %s\n\nnothing was launched\n' "$1" "$2" >&2
  exit 2
}

take() {
  local most=$1
  shift
  positions=()
  while [ $# -gt 0 ] && [ ${#positions[@]} -lt "$most" ]; do
    case $1 in -*) break ;; esac
    positions+=("$1")
    shift
  done
  rest=("$@")
}

split() {
  name=${1%%=*}
  if [ "$name" != "$1" ]; then
    value=${1#*=} width=1
  elif [ $# -ge 2 ]; then
    value=$2 width=2
  else
    fail "\`$1\` needs a value" "\`$self … $1 VALUE\`"
  fi
}

whole() {
  case $2 in
    0) [ "${3-}" = 0 ] || fail "$1 is \`0\`, not a whole number above 0" "$usage" ;;
    '' | *[!0-9]* | 0*) fail "$1 is \`$2\`, not a whole number" "$usage" ;;
  esac
}

processes() {
  [ "$2" = auto ] || whole "$1" "$2"
}

become_ddplaunch() {
  local nproc=$1 words extra=() launcher=() python
  shift
  words=$(printf '%s' "${DDPLAUNCH_OPTIONS-}" | xargs -r -n 1 printf '%s\n' 2>/dev/null) ||
    fail "a quote in DDPLAUNCH_OPTIONS does not end: $DDPLAUNCH_OPTIONS" "\`DDPLAUNCH_OPTIONS='--hang-timeout 10m' $self\`"
  [ -z "$words" ] || mapfile -t extra <<<"$words"
  if command -v ddplaunch >/dev/null 2>&1; then
    launcher=(ddplaunch)
  else
    for python in "${VIRTUAL_ENV:-.venv}/bin/python" .venv/bin/python python3 python; do
      if "$python" -c 'import ddplaunch.cli' >/dev/null 2>&1; then
        launcher=("$python" -m ddplaunch)
        break
      fi
    done
  fi
  [ ${#launcher[@]} -gt 0 ] ||
    fail "ddplaunch is not installed where this training runs" \
      "activate the environment that has it, or install it: \`python3 -m pip install PATH-OF-ITS-CHECKOUT\`"
  export DDPLAUNCH_CALLED_AS=${called_as-yes}
  exec "${launcher[@]}" run "$nproc" ${extra[@]+"${extra[@]}"} "$@"
}
