#!/usr/bin/env bash
# The demonstration, in a network namespace and a mount namespace of its own: nothing of it is seen outside or left behind.
#   scripts/demo.sh DIRECTORY-OF-THE-BINARIES
set -euo pipefail

if [ "${1:-}" != --inside ]; then
    bin=$(cd "${1:-target/debug}" && pwd)
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    PATH="$bin:$PATH" exec unshare --net --mount --propagation private "$0" --inside
fi

# A private /run holds everything that the agent and `ip netns` write, so the commands below are those of a real host.
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/state
ip link set lo up
export VNF_AGENT_STATE_DIR=/run/state DOCKER_HOST=off
log=/run/agent.log

agent=
finish() {
    code=$?
    trap - EXIT INT TERM
    if [ -n "$agent" ] && kill "$agent" 2>/dev/null; then wait "$agent" 2>/dev/null || true; fi
    if [ $code -ne 0 ] && [ $code -ne 130 ]; then
        echo "demo: failed (exit status $code); the agent's log:" >&2
        tail -n 40 "$log" >&2 || true
    fi
    exit $code
}
trap finish EXIT
trap 'exit 130' INT TERM

run() { printf '\n$ %s\n' "$*"; "$@"; }
say() { printf '\n# %s\n' "$*"; }
# Waits up to ten seconds for a condition, as long as the agent lives.
await() {
    for _ in $(seq 200); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "$agent" 2>/dev/null || { echo "demo: the agent ended" >&2; return 1; }
        sleep 0.05
    done
    echo "demo: waited in vain for: $*" >&2
    return 1
}
is_gone() { ! ip -n "$1" link show dev "$2"; }
waits() { vnfctl status "$1" | grep -q PEER_MISSING; }
is_up() { ip -n "$1" -br address show dev "$2" | grep -q "UP.*$3"; }

say "The agent, on its embedded store (no etcd, no Docker):"
printf '\n$ vnf-agent &\n'
# The agent must not outlive this script, whatever ends it.
setpriv --pdeathsig KILL vnf-agent >"$log" 2>&1 &
agent=$!
await vnfctl ls

say "Two wishes: veth1 in namespace red, its peer veth2 in namespace blue."
run cat examples/pair/veth1.json examples/pair/veth2.json
run vnfctl apply -f examples/pair --wait
run vnfctl interfaces
run ip netns exec red ping -c 3 -i 0.2 -W 1 10.11.1.2

say "Someone deletes the link by hand. It comes back, with all its settings."
run ip -n red link del veth1
await is_up red veth1 10.11.1.1/24
await is_up blue veth2 10.11.1.2/24
run ip -n red -br address show dev veth1
run ip -n blue -br address show dev veth2
run ip netns exec red ping -c 3 -i 0.2 -W 1 10.11.1.2

say "Without its wish it goes, and the other end waits for its peer."
run vnfctl del linux/config/v1/interface/veth1
await is_gone red veth1
await waits veth2
run vnfctl interfaces
say "Done. Nothing of this is left on the host."
