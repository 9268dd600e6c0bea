#!/usr/bin/env bash
# Makes .venv with the package in it, from requirements.lock; uses uv where it can, pip where it must.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-python3}"
VENV=.venv

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
  say "$1"
  shift
  for line in "$@"; do printf '       %s\n' "$line" >&2; done
  exit 1
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

choose_python() {
  local candidate
  for candidate in "$PYTHON" python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && recent "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  local found="no python3"
  command -v "$PYTHON" >/dev/null && found="$("$PYTHON" --version 2>&1)"
  fail "Mandor needs Python 3.11 or newer; found ${found}." \
    "Debian 12+, Ubuntu 24.04+:  apt-get install python3 python3-venv" \
    "elsewhere:                  https://www.python.org/downloads/, then  make setup PYTHON=/path/to/python3"
}

make_venv() {
  local python="$1"
  if [ -x "$VENV/bin/python" ] && recent "$VENV/bin/python"; then return; fi
  rm -rf "$VENV"
  if command -v uv >/dev/null; then
    uv venv --quiet --seed --python "$python" "$VENV" && return
    say "uv could not make the environment; trying ${python} -m venv"
  fi
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    fail "${python} comes without venv (ensurepip), which makes virtual environments." \
      "Debian, Ubuntu:  apt-get install python3-venv" \
      "or install uv (https://docs.astral.sh/uv/), which needs neither."
  fi
  "$python" -m venv "$VENV"
}

find_uv() {
  if command -v uv; then return; fi
  if [ -x "$VENV/bin/uv" ]; then
    echo "$VENV/bin/uv"
    return
  fi
  # uv installs the whole set in seconds where pip takes a minute: fetch it first, by the lock's own hashes.
  awk '/^uv==/ {on = 1} on {print} on && !/\\$/ {exit}' requirements.lock >"$VENV/uv.lock"
  if "$VENV/bin/python" -m pip install --quiet --require-hashes -r "$VENV/uv.lock" >&2; then
    echo "$VENV/bin/uv"
  fi
}

install_with_uv() {
  local uv="$1" index
  index="${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)}}"
  if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
  if [ -n "${PIP_CERT:-}" ]; then export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"; fi
  # uv trusts a list of its own; a company's authority stands in the system's. (The second name is for older ones.)
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}" UV_NATIVE_TLS="${UV_NATIVE_TLS:-true}"
  fi
  export VIRTUAL_ENV="$PWD/$VENV"
  "$uv" pip install --quiet --compile-bytecode --require-hashes -r requirements.lock &&
    "$uv" pip install --quiet --no-deps --no-build-isolation -e .
}

install_with_pip() {
  "$VENV/bin/python" -m pip install --quiet --require-hashes -r requirements.lock &&
    "$VENV/bin/python" -m pip install --quiet --no-deps --no-build-isolation -e .
}

started=$SECONDS
python="$(choose_python)"
say "making ${VENV} with $("$python" --version) (once; seconds with uv, a minute or two with pip)"
make_venv "$python"
uv="$(find_uv)"
if [ -z "$uv" ] || ! install_with_uv "$uv"; then
  say "going on with pip, which takes longer"
  install_with_pip || fail "the packages could not be installed." \
    "Is there a network? pip's own settings (index, proxy, certificate) are used."
fi
say "ready after $((SECONDS - started)) s: ${VENV}/bin/mandor"
