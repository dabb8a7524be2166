#!/usr/bin/env bash
# A CPU group for the lab's load generators, so that they are not what waits for a CPU when VMs fill the host. Its weight
# is the largest there is; it competes with the group that holds all VMs, whose weight is ordinary.
usage() {
    cat <<'USAGE'
usage: loadgroup.sh make                             make the group (no error if it is there)
       loadgroup.sh run [--cpus LIST] [--] COMMAND…  run a command in it, on these CPUs (as for taskset -c)
       loadgroup.sh show                             print the weight and the processes in it
       loadgroup.sh remove                           remove it; what still runs in it goes on outside

Runs as root. Where no cgroup hierarchy has the cpu controller, "make" says so and "run" raises the priority instead.
USAGE
}
set -euo pipefail

readonly GROUP=equipoise-lab-load
readonly SHARES=262144 # cgroup v1, 2 to 262144
readonly WEIGHT=10000  # cgroup v2, 1 to 10000
readonly NICE=-15

fail() {
    echo "loadgroup.sh: $*" >&2
    exit 1
}

# Print "1 DIRECTORY" or "2 DIRECTORY": the version and mount point of the hierarchy with the cpu controller.
find_hierarchy() {
    local mount type options
    while read -r _ mount type options _; do
        if [[ $type == cgroup && ,$options, == *,cpu,* ]]; then
            echo "1 $mount" && return
        elif [[ $type == cgroup2 ]] && grep -qsw cpu "$mount/cgroup.controllers"; then
            echo "2 $mount" && return
        fi
    done </proc/self/mounts
    return 1
}

make_group() {
    if ((version == 2)); then
        echo +cpu >"$root/cgroup.subtree_control" || fail "$root does not delegate the cpu controller"
    fi
    [[ -d $root/$GROUP ]] || cgcreate -g "cpu:$GROUP" || fail "cgcreate could not make the group $GROUP"
    if ((version == 2)); then
        cgset -r "cpu.weight=$WEIGHT" "$GROUP"
    else
        cgset -r "cpu.shares=$SHARES" "$GROUP"
    fi
}

show_group() {
    local weight=cpu.shares
    ((version == 1)) || weight=cpu.weight
    [[ -d $root/$GROUP ]] || fail "there is no group $GROUP"
    echo "$root/$GROUP $weight $(<"$root/$GROUP/$weight") processes: $(tr '\n' ' ' <"$root/$GROUP/cgroup.procs")"
}

remove_group() {
    [[ -d $root/$GROUP ]] || return 0
    local process
    # cgroup v2 does not let a group go while somebody is in it. A process that ends meanwhile is no error.
    while read -r process; do
        cgclassify -g cpu:/ "$process" 2>/dev/null || true
    done <"$root/$GROUP/cgroup.procs"
    cgdelete -g "cpu:$GROUP" || fail "cgdelete could not remove the group $GROUP"
}

run_command() {
    local prefix=()
    if [[ ${1:-} == --cpus ]]; then
        [[ $# -ge 2 ]] || fail "--cpus needs a list such as 0-1"
        prefix=(taskset -c "$2")
        shift 2
    fi
    [[ ${1:-} != -- ]] || shift
    [[ $# -gt 0 ]] || fail "run needs a command"
    if [[ -z $root ]]; then
        prefix+=(nice -n "$NICE")
    elif [[ -d $root/$GROUP ]]; then
        prefix+=(cgexec -g "cpu:$GROUP")
    else
        fail "there is no group $GROUP; make it first"
    fi
    exec "${prefix[@]}" "$@"
}

case ${1:-} in -h | --help) usage; exit 0 ;; esac
[[ $EUID -eq 0 ]] || fail "must run as root"
if ! read -r version root < <(find_hierarchy); then
    version=0 root=""
    echo "loadgroup.sh: no cgroup hierarchy has the cpu controller: priority (nice $NICE) instead of a group" >&2
fi
command=${1:-}
[[ $# -eq 0 ]] || shift
case $command in
run) run_command "$@" ;;
make) [[ -z $root ]] || make_group ;;
show) [[ -z $root ]] || show_group ;;
remove) [[ -z $root ]] || remove_group ;;
*) usage >&2; exit 2 ;;
esac
