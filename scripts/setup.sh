#!/usr/bin/env bash
# Makes a Debian 12 machine ready for Holdfast. Idempotent: what is there already is left alone, and when
# nothing is missing neither root nor the network is needed. `--lint` installs cargo-deny alone, `--bench` adds
# what the benchmarks compare with.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Runs a command as root: directly, or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "needs root for: $* (run 'make setup' as root once, or install sudo)"
    fi
}

install_packages() {
    # Runtime: crun conmon slirp4netns uidmap. Build: libnftnl-dev libmnl-dev pkg-config, a C compiler for the
    # bundled SQLite. Demo and tests: busybox-static. Tests: bind9-dnsutils. For the operator's eyes: nftables iproute2 iputils-ping.
    local wanted=(crun conmon slirp4netns uidmap libnftnl-dev libmnl-dev pkg-config busybox-static
        nftables iproute2 iputils-ping bind9-dnsutils) missing=() package
    # podman with runc: its crun refuses a machine with hybrid cgroups.
    [ "$1" = --bench ] && wanted+=(podman runc)
    command -v cc >/dev/null || wanted+=(gcc libc6-dev)
    for package in "${wanted[@]}"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
    done
    if [ "${#missing[@]}" -eq 0 ]; then
        say "packages: all ${#wanted[@]} installed"
        return
    fi
    say "packages: installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    for package in "${missing[@]}"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] \
            || die "package $package is still not installed"
    done
}

# The user that the node runs as: the caller, or, called as root, one that is made here.
ensure_user() {
    if [ "$(id -u)" -ne 0 ]; then
        user=$(id -un)
        say "node user: $user (the caller)"
    else
        user=${HOLDFAST_TEST_USER:-holdfast}
        if id "$user" >/dev/null 2>&1; then
            say "node user: $user exists"
        else
            useradd --create-home --shell /bin/bash "$user"
            say "node user: made $user"
        fi
    fi
}

# useradd gives ranges by itself where login.defs says so; elsewhere take the first range after all others.
ensure_subids() {
    local file next
    for file in /etc/subuid /etc/subgid; do
        if grep -qs -e "^$user:" -e "^$(id -u "$user"):" "$file"; then
            say "$file: $user has a range"
            continue
        fi
        next=$(awk -F: 'BEGIN { n = 100000 } $2 + $3 > n { n = $2 + $3 } END { print n }' "$file" 2>/dev/null || echo 100000)
        case $file in
            /etc/subuid) as_root usermod --add-subuids "$next-$((next + 65535))" "$user" ;;
            /etc/subgid) as_root usermod --add-subgids "$next-$((next + 65535))" "$user" ;;
        esac
        say "$file: gave $user $next..$((next + 65535))"
    done
}

ensure_tun() {
    if [ ! -c /dev/net/tun ]; then
        as_root mkdir -p /dev/net
        as_root mknod /dev/net/tun c 10 200
        say "/dev/net/tun: made"
    fi
    if [ "$(stat -c %a /dev/net/tun)" = 666 ]; then
        say "/dev/net/tun: open to all users"
    else
        as_root chmod 0666 /dev/net/tun
        say "/dev/net/tun: relaxed to 0666"
    fi
}

# A login session gives XDG_RUNTIME_DIR; a user that root made has none until someone makes it.
ensure_runtime_dir() {
    [ "$(id -u)" -eq 0 ] || { say "runtime directory: ${XDG_RUNTIME_DIR:-none; the node falls back to /tmp}"; return 0; }
    local uid dir
    uid=$(id -u "$user")
    dir=/run/user/$uid
    if [ -d /run/systemd/system ] && command -v loginctl >/dev/null && loginctl enable-linger "$user" 2>/dev/null; then
        say "linger: on for $user, so its processes outlive its logins"
    fi
    if [ "$(stat -c '%u %a' "$dir" 2>/dev/null || true)" = "$uid 700" ]; then
        say "runtime directory: $dir"
    else
        mkdir -p /run/user
        install -d -m 0700 -o "$user" -g "$(id -g "$user")" "$dir"
        say "runtime directory: made $dir"
    fi
}

ensure_cargo_deny() {
    if cargo deny --version >/dev/null 2>&1; then
        say "cargo-deny: $(cargo deny --version)"
    else
        say "cargo-deny: building it, about three minutes on two cores"
        cargo install --quiet --locked cargo-deny --version "$cargo_deny_version"
    fi
}

# The version that deny.toml was written for.
cargo_deny_version=0.20.2

command -v cargo >/dev/null || die "no cargo: install a Rust toolchain, 1.95 or newer"
if [ "${1:-}" = --lint ]; then
    ensure_cargo_deny
    exit 0
fi
command -v dpkg-query >/dev/null || die "this is no Debian: install crun conmon slirp4netns uidmap libnftnl libmnl busybox by hand"
install_packages "${1:-}"
ensure_user
ensure_subids
ensure_tun
ensure_runtime_dir
say "done"
