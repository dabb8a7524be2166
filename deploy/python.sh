#!/usr/bin/env bash
# Print the path of a Python with Equipoise and the extras named as arguments, making .venv in the checkout if needed.
#
#   python=$(deploy/python.sh test postgresql)
#
# The environment is made anew when setup.cfg, the extras or the Python changed. Progress goes to stderr. PYTHON names
# another interpreter than the distribution's.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$top/.venv
extras=$(IFS=,; echo "$*")

fail() {
    printf 'python.sh: %s\n' "$@" >&2
    exit 1
}

# The distribution's own first: the services run on it, and it is built for speed (one fourth faster than a plain build).
interpreter=
for candidate in ${PYTHON:-/usr/bin/python3 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        interpreter=$candidate
        break
    fi
done
[[ -n $interpreter ]] || fail "${PYTHON:-python3} is not Python 3.11 or newer; PYTHON names another"

stamp=$({ cat "$top/setup.cfg" "$top/pyproject.toml"; echo "$interpreter"; "$interpreter" --version; echo "$extras"; } | sha256sum)
if [[ ! -x $venv/bin/python || $(cat "$venv/stamp" 2>/dev/null) != "$stamp" ]]; then
    echo "      installing Equipoise and what it needs into .venv" >&2
    "$interpreter" -m venv --clear "$venv" >&2 || fail "$interpreter -m venv failed; on Debian: apt-get install python3-venv"
    "$venv/bin/pip" install --quiet --editable "$top${extras:+[$extras]}" >&2 || fail "pip could not install: see above"
    echo "$stamp" >"$venv/stamp"
fi
echo "$venv/bin/python"
