#!/usr/bin/env bash
# Real components beside every check, then every test; a line for each at the end.
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

# The checks compute while the components come from afar.
log=$(mktemp)
make --no-print-directory check >"$log" 2>&1 &
checks=$!
trap 'kill "$checks" 2>/dev/null; rm -f "$log"' EXIT

finish_checks() {
  local code=0
  wait "$checks" || code=$?
  cat "$log"
  return "$code"
}

stage components .venv/bin/python scripts/components.py
stage check finish_checks
# One worker more than there are cores, as a rule: many tests wait. Their order is that of tests/conftest.py.
stage tests .venv/bin/pytest -n "${WORKERS:-3}" --dist loadfile --no-loadscope-reorder --durations=10 "$@"

printf '\n'
printf '  %s\n' "${summary[@]}"
exit "$status"
