#!/bin/sh
# Make .venv with mimetic (editable) and the named extras; does nothing when nothing changed.
#
#   scripts/setup.sh [EXTRA ...]        for example: scripts/setup.sh report test
#
# PYTHON  interpreter to build on (default: the first of python3, python3.11, python3.12, python3.13 that fits)
# TORCH   version of torch (default: the one of constraints.txt; with an NVIDIA driver TORCH_CUDA below)
# VENV    folder of the environment (default: .venv)
set -eu
cd "$(dirname "$0")/.."

TORCH_CUDA=2.14.1 # tested CUDA build; where a driver is too old for it, say TORCH=
VENV=${VENV:-.venv}
extras=$(printf '%s\n' "$@" | LC_ALL=C sort -u | paste -sd, -)

torch=${TORCH:-}
if [ -z "$torch" ] && nvidia-smi -L >/dev/null 2>&1; then torch=$TORCH_CUDA; fi

# Up to date? The stamp holds what the environment was made from.
want=$(cat constraints.txt pyproject.toml "$0" | cksum; echo "torch=$torch")
stamp="$VENV/made-with-$(echo "$extras" | tr ',' '-')"
if [ -x "$VENV/bin/mimetic" ] && [ "$(cat "$VENV/made-at")" = "$(pwd)" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then exit 0; fi

fits='import sys, venv, ensurepip; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
if [ "$(cat "$VENV/made-at" 2>/dev/null)" != "$(pwd)" ] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    if "$candidate" -c "$fits" >/dev/null 2>&1; then python=$candidate; break; fi
  done
  if [ -z "${python:-}" ]; then
    echo "error: no Python 3.11, 3.12 or 3.13 with \`venv\` found (tried: ${PYTHON:-python3 python3.11 python3.12 python3.13})" >&2
    echo "hint: install one (Debian and Ubuntu: \`apt install python3 python3-venv\`), or name it: \`make PYTHON=/path/to/python ...\`" >&2
    exit 2
  fi
  echo "setup: new environment in $VENV with $("$python" --version)" >&2
  "$python" -m venv --clear "$VENV"
  pwd >"$VENV/made-at" # an environment does not survive being moved
fi

echo "setup: installing mimetic${extras:+ with the extras $extras} (about a minute the first time)" >&2
if [ -n "$torch" ]; then sed "s/^torch==.*/torch==$torch/" constraints.txt; else cat constraints.txt; fi >"$VENV/constraints.txt"
rm -f "$stamp"
"$VENV/bin/python" -m pip install -qq --disable-pip-version-check -c "$VENV/constraints.txt" -e ".${extras:+[$extras]}"
printf '%s\n' "$want" >"$stamp"
