#!/usr/bin/env bash
# Make a Debian machine (12 or newer, amd64) ready for the lab: packages, libvirtd, and libvirt's network "default".
usage() {
    cat <<'USAGE'
usage: deploy/lab/setup.sh               do what is missing; changes nothing when nothing is
       deploy/lab/setup.sh --teardown    stop again what earlier runs started, and nothing else; packages stay
USAGE
}
# Two of them take turns, and neither starts nor stops libvirtd or the network while somebody uses the lab (lab_lock.py).
# Runs as root, with or without systemd. Services that the guests run (nginx, memcached) are not installed: the guest
# builder takes the programs out of their packages. What was started stands in $STARTED, one thing a line.
set -euo pipefail

readonly STARTED=/run/equipoise-lab.started
readonly URI=qemu:///system
readonly WAIT_S=30
readonly TURN=/run/equipoise-lab.setup
readonly LAB=/var/lib/equipoise-lab/lab.lock
readonly KVM=/dev/kvm
readonly QEMU_USER=libvirt-qemu

# QEMU and libvirt; what the default network needs; what builds the guest; what libvirt-python is built from.
readonly PACKAGES=(
    qemu-system-x86 libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-daemon-config-network libvirt-clients
    dnsmasq-base iptables iproute2
    gcc libc6-dev kmod zstd cgroup-tools util-linux e2fsprogs libfuse3-dev fuse3
    libvirt-dev pkg-config python3-dev python3-venv
)

step() { echo "[$1/4] $2"; }

fail() {
    printf 'setup.sh: %s\n' "$@" >&2
    exit 1
}

has_systemd() { [[ -d /run/systemd/system ]]; }

answers() { timeout 10 virsh -q -c "$URI" uri >/dev/null 2>&1; }

# Not grep -q in a pipe: it leaves early, and pipefail then reports that its writer died of it.
network_is_active() { virsh -q -c "$URI" net-list --name 2>/dev/null | grep -x default >/dev/null; }

note_started() { grep -qsxF "$1" "$STARTED" || echo "$1" >>"$STARTED"; }

# await_turn DESCRIPTOR FILE WHAT: until nobody else has that open file locked; WHAT says who that is. What is started
# meanwhile must have it closed, or a daemon would keep the lock.
await_turn() {
    local wait=0
    until flock -w $wait "$1"; do
        echo "      waiting for $3$(cat "$2")" >&2
        wait=$WAIT_S
    done
}

# Print the number of the process that a pid file names, if it runs that program.
running_pid() {
    local pid
    pid=$(cat "/run/$1.pid" 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == "$1" ]] && echo "$pid"
}

check_host() {
    [[ -e /etc/debian_version ]] || fail "this is not Debian: install the equivalents of: ${PACKAGES[*]}"
    [[ $(dpkg --print-architecture) == amd64 ]] || fail "the lab's guests are for amd64 only"
    if ! grep -qE '^\S+ \S+ cgroup \S*\bcpu\b' /proc/self/mounts; then
        local unified
        unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
        grep -qsw cpu "${unified:-/nowhere}/cgroup.controllers" || fail \
            "no cgroup hierarchy has the cpu controller, so VMs could not be weighted" \
            "try: mount -t cgroup2 none /sys/fs/cgroup"
    fi
}

install_packages() {
    local missing=() package
    for package in "${PACKAGES[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    # The guest builder asks apt for a kernel, so apt's lists are needed even when all packages are there.
    if [[ ${#missing[@]} -gt 0 ]] || ! apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1; then
        apt-get -q update || fail "apt-get update failed: see above; is the network up?"
    fi
    if [[ ${#missing[@]} -gt 0 ]]; then
        echo "      installing: ${missing[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends install "${missing[@]}" ||
            fail "apt-get could not install: ${missing[*]}"
    fi
}

# Where no udev runs, /dev/kvm is root's alone. libvirt then finds KVM when it examines QEMU as root and misses it when
# it asks for QEMU's user, trusts no answer, and examines QEMU anew for every VM: seconds each time.
open_kvm() {
    [[ -e $KVM ]] || return 0
    setpriv --reuid=$QEMU_USER --regid=$QEMU_USER --init-groups test -r $KVM -a -w $KVM && return
    note_started "kvm $(stat -c '%U:%G %a' $KVM)"
    if ! { chgrp kvm $KVM && chmod 660 $KVM; }; then
        fail "cannot give the group kvm access to $KVM, as Debian does"
    fi
}

start_libvirtd() {
    if has_systemd; then
        systemctl start libvirtd.service || fail "libvirtd does not start: journalctl -u libvirtd"
        note_started libvirtd.service
    else
        local daemon
        for daemon in virtlogd libvirtd; do
            if ! running_pid "$daemon" >/dev/null; then
                "$daemon" -d || fail "$daemon does not start: run '$daemon' in a terminal to see why"
                note_started "$daemon"
            fi
        done
    fi
    local tries
    for ((tries = 0; tries < WAIT_S; tries++)); do
        if answers; then return; fi
        sleep 1
    done
    fail "libvirtd was started but does not answer at $URI within $WAIT_S s"
}

start_network() {
    if ! virsh -q -c "$URI" net-list --all --name | grep -x default >/dev/null; then
        virsh -q -c "$URI" net-define /usr/share/libvirt/networks/default.xml ||
            fail "libvirt has no network \"default\" and would not take its usual definition"
    fi
    virsh -q -c "$URI" net-start default || fail "libvirt's network \"default\" does not start (reason above)" \
        "if another network has its addresses, choose others: virsh net-edit default"
    note_started "network default"
}

start_missing() { # whether libvirtd answered, and had the network, before packages were installed
    if [[ $1 == no ]]; then start_libvirtd; fi
    if ! network_is_active; then
        start_network
    elif [[ $1 == no && $2 == no ]] && has_systemd; then
        note_started "network default"
    fi
}

setup() {
    step 1 "this machine"
    check_host
    # Installing libvirt starts it where there is systemd; that counts as started here.
    local answered=no networked=no
    if answers; then
        answered=yes
        if network_is_active; then networked=yes; fi
    fi
    step 2 "packages"
    install_packages
    step 3 "libvirtd and its network \"default\""
    open_kvm
    if [[ $answered == no ]] || ! network_is_active; then
        mkdir -p "${LAB%/*}"
        exec 8>>"$LAB" # who has it may have ended libvirtd for a moment
        await_turn 8 "$LAB" "who uses the lab (process, since, name): "
        start_missing "$answered" "$networked" 8>&-
        exec 8>&-
    fi
    step 4 "ready: libvirt $(virsh -q -c "$URI" version --daemon | sed -n 's/^Running against daemon: //p')"
    if [[ -s $STARTED ]]; then
        echo "      started by this script and running since ($STARTED):"
        sed 's/^/        /' "$STARTED"
    else
        echo "      nothing had to be started"
    fi
}

stop_daemon() {
    local pid tries
    pid=$(running_pid "$1") || return 0
    kill "$pid"
    for ((tries = 0; tries < WAIT_S * 10; tries++)); do
        [[ -d /proc/$pid ]] || return 0
        sleep 0.1
    done
    fail "$1 (process $pid) does not end"
}

teardown() {
    [[ $EUID -eq 0 ]] || fail "must run as root"
    if [[ ! -s $STARTED ]]; then
        echo "nothing to stop: $STARTED names nothing"
        return
    fi
    local running thing owner mode
    running=$(virsh -q -c "$URI" list --name | sed '/^$/d' || true)
    [[ -z $running ]] || fail "VMs are still running, stop them first:" "$running"
    exec 8>>"$LAB"
    flock -n 8 || fail "the lab is in use (process, since, name): $(cat "$LAB")"
    while read -r thing; do
        echo "stopping $thing"
        case $thing in
        "network default") virsh -q -c "$URI" net-destroy default ;;
        libvirtd.service)
            systemctl stop libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd.service
            ;;
        libvirtd | virtlogd) stop_daemon "$thing" ;;
        kvm\ *)
            read -r _ owner mode <<<"$thing"
            chown "$owner" $KVM
            chmod "$mode" $KVM
            ;;
        *) fail "unknown entry in $STARTED: $thing" ;;
        esac
    done < <(tac "$STARTED")
    rm -f "$STARTED"
}

case "${1:-}" in
"")
    [[ $EUID -eq 0 ]] || fail "must run as root"
    exec 9>>"$TURN"
    await_turn 9 "$TURN" "another deploy/lab/setup.sh"
    setup 9>&-
    ;;
--teardown) teardown ;;
-h | --help) usage ;;
*) usage >&2; exit 2 ;;
esac
