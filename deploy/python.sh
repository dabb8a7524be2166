#!/usr/bin/env bash
# Print the path of a Python with Equipoise and the extras named as arguments, making .venv in the checkout if needed.
usage() {
    cat <<'USAGE'
usage: deploy/python.sh [EXTRA ...]      such as: python=$(deploy/python.sh test postgresql)

The environment only grows: it keeps the extras that others asked for, so that the demonstration and the tests can use
it in turn and at once. Nothing in it is removed, whoever uses it. It is brought up to date when setup.cfg or the Python
changed; for another interpreter there is another one, .venv-NUMBER. Two that want to change it take turns.
Progress goes to stderr. PYTHON names another interpreter than the distribution's.
USAGE
}
set -euo pipefail
case ${1:-} in
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
esac

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mapfile -t wanted < <(printf '%s\n' "$@" | sed '/^$/d' | sort -u)

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

identify() { "$1" -c 'import os, sys; print(os.path.realpath(sys._base_executable), *sys.version.split())' 2>/dev/null; }

identity=$(identify "$interpreter")
venv=$top/.venv
made_by=$(identify "$venv/bin/python" || true)
if [[ -n $made_by && ${made_by%% *} != "${identity%% *}" ]]; then
    venv+=-$(sha256sum <<<"${identity%% *}" | cut -c -8)
fi
stamp=$({ cat "$top/setup.cfg" "$top/pyproject.toml"; echo "$identity"; } | sha256sum | cut -d ' ' -f 1)

is_current() { [[ -x $venv/bin/python && $(cat "$venv/stamp" 2>/dev/null) == "$stamp" ]]; }

missing() { # the extras that are wanted and not there
    comm -13 <(sort "$venv/extras" 2>/dev/null) <(printf '%s\n' "${wanted[@]}" | sed '/^$/d')
}

note() { # file of the environment, from standard input: whole or not at all
    cat >"$venv/$1.new"
    mv "$venv/$1.new" "$venv/$1"
}

requirements() { # extra ...: what setup.cfg says of them
    "$interpreter" - "$top/setup.cfg" "$@" <<'PYTHON'
import configparser
import sys

settings = configparser.ConfigParser()
settings.read(sys.argv[1])
extras = settings["options.extras_require"]
unknown = [name for name in sys.argv[2:] if name not in extras]
if unknown:
    sys.exit(f"setup.cfg has no extra {', '.join(unknown)}; there are: {', '.join(extras)}")
print("\n".join(line for name in sys.argv[2:] for line in extras[name].split("\n") if line))
PYTHON
}

install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2 || fail "pip could not install: see above"; }

grow() {
    local all new needed
    all=$(sort -u <(cat "$venv/extras" 2>/dev/null) <(missing))
    if is_current; then
        mapfile -t new < <(missing)
        echo "      adding to ${venv##*/}: ${new[*]}" >&2
        mapfile -t needed < <(requirements "${new[@]}")
        install "${needed[@]}"
    else
        echo "      installing Equipoise and what it needs into ${venv##*/}" >&2
        # In place, over what may be there: somebody may be using it. Nobody uses a link to a Python that is gone.
        [[ -x $venv/bin/python ]] || rm -f "$venv"/bin/python*
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$interpreter" -m venv "$venv" >&2 ||
            fail "$interpreter -m venv failed; on Debian: apt-get install python3-venv"
        install --editable "$top${all:+[${all//$'\n'/,}]}"
        note stamp <<<"$stamp"
    fi
    note extras <<<"$all"
}

requirements "${wanted[@]}" >/dev/null || fail "nothing was changed"
if ! is_current || [[ -n $(missing) ]]; then
    exec 9>"$top/.venv.lock"
    flock -n 9 || { echo "      waiting for another deploy/python.sh that changes ${venv##*/}" >&2; flock 9; }
    if ! is_current || [[ -n $(missing) ]]; then grow; fi # another one may have done it meanwhile
    exec 9>&-
fi
echo "$venv/bin/python"
