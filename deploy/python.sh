#!/usr/bin/env bash
# Print the path of a Python with Equipoise and the extras named as arguments, making .venv in the checkout if needed.
#
#   python=$(deploy/python.sh test postgresql)
#
# The environment is made anew when setup.cfg, the extras or the Python version changed. Progress goes to stderr.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$top/.venv
extras=$(IFS=,; echo "$*")

fail() {
    printf 'python.sh: %s\n' "$@" >&2
    exit 1
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed; this is $(python3 --version)"

stamp=$({ cat "$top/setup.cfg" "$top/pyproject.toml"; python3 --version; echo "$extras"; } | sha256sum)
if [[ ! -x $venv/bin/python || $(cat "$venv/stamp" 2>/dev/null) != "$stamp" ]]; then
    echo "      installing Equipoise and what it needs into .venv" >&2
    python3 -m venv --clear "$venv" >&2 || fail "python3 -m venv failed; on Debian: apt-get install python3-venv"
    "$venv/bin/pip" install --quiet --editable "$top${extras:+[$extras]}" >&2 || fail "pip could not install: see above"
    echo "$stamp" >"$venv/stamp"
fi
echo "$venv/bin/python"
