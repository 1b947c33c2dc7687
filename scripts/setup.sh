#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need, and only those that are missing.
# The daemons among them (etcd, Docker, Open vSwitch) are used by tests in private namespaces: the distribution's own
# services are neither started nor enabled.
set -euo pipefail

packages=(etcd-server etcd-client iproute2 iputils-ping protobuf-compiler libprotobuf-dev docker.io openvswitch-switch
          strace nftables procps jq util-linux busybox-static gcc libc6-dev)
policy=/usr/sbin/policy-rc.d

fail() { echo "setup: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "run this as root: the tests and the demo make network namespaces, and missing packages are installed"
[ -e /etc/debian_version ] && command -v apt-get >/dev/null || fail "this is no Debian; install these by hand: ${packages[*]}"
command -v cargo >/dev/null || fail "cargo is missing; install Rust 1.90 or newer (https://rustup.rs)"

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "setup: installing from Debian: ${missing[*]}"

# A policy of 101 keeps maintainer scripts from starting daemons (Debian policy 9.3.3); a policy of the machine's own is put back afterwards.
log=$(mktemp)
kept=
if [ -e "$policy" ] || [ -L "$policy" ]; then kept=$(mktemp -u "$policy.XXXXXX"); mv "$policy" "$kept"; fi
restore() { rm -f "$policy" "$log"; [ -z "$kept" ] || mv "$kept" "$policy"; }
trap restore EXIT
trap 'exit 130' INT TERM
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

enabled_units() {
    [ -d /run/systemd/system ] || return 0
    systemctl list-unit-files --no-legend --state=enabled --type=service,socket | awk '{print $1}' | sort
}
enabled_before=$(enabled_units)

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1; }
apt update || { cat "$log" >&2; fail "apt-get update failed (above)"; }
apt install -y --no-install-recommends "${missing[@]}" || { cat "$log" >&2; fail "apt-get install failed (above)"; }

# What the installation enabled would start at the next boot.
comm -13 <(echo "$enabled_before") <(enabled_units) | while read -r unit; do systemctl disable --quiet "$unit" </dev/null >>"$log" 2>&1 || true; done
