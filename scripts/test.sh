#!/usr/bin/env bash
# Real components, then every check, then every test; a line for each at the end.
set -uo pipefail
cd "$(dirname "$0")/.."

summary=()
status=0

stage() {
  local name="$1" started=$SECONDS
  shift
  if "$@"; then
    summary+=("$(printf '%-11s ok      %4d s' "$name" $((SECONDS - started)))")
  else
    summary+=("$(printf '%-11s FAILED  %4d s' "$name" $((SECONDS - started)))")
    status=1
  fi
}

stage components .venv/bin/python scripts/components.py
stage check make --no-print-directory check
stage tests .venv/bin/pytest -n "${WORKERS:-2}" --dist loadfile --durations=10 "$@"

printf '\n'
printf '  %s\n' "${summary[@]}"
exit "$status"
