#!/bin/sh
# system.sh PYTHON: checks what pip cannot install. As root on a machine with apt it installs what is
# missing; otherwise it names the package and fails. Quiet when nothing is missing.
set -eu
python=${1:-python3}

fail() {
    echo "crucible: $*" >&2
    exit 1
}

can_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

apt_updated=
install() {
    echo "crucible: installing $*" >&2
    # The lists of a fresh machine or image are empty or out of date.
    [ -n "$apt_updated" ] || apt-get update -qq >/dev/null || true
    apt_updated=yes
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

has_python() {
    command -v "$python" >/dev/null
}

has_venv() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null
}

has_seccomp() {
    "$python" -c 'import ctypes; ctypes.CDLL("libseccomp.so.2")' 2>/dev/null
}

# require CHECK PACKAGE MESSAGE
require() {
    if "$1"; then return; fi
    if can_install; then install "$2" || true; fi
    "$1" || fail "$3"
}

# A Python that was named is not ours to install.
[ "$python" != python3 ] || has_python || ! can_install || install python3
has_python ||
    fail "no $python found. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" -V 2>&1); 3.11 or newer is needed: make PYTHON=/path/to/python3"
require has_venv python3-venv \
    "$python cannot make virtual environments: install python3-venv (Debian, Ubuntu), or name another Python: make PYTHON=/path/to/python3"
require has_seccomp libseccomp2 \
    "libseccomp.so.2 is missing: install libseccomp2 (Debian, Ubuntu) or libseccomp (Fedora, Arch)"

# Only the benchmarks use bubblewrap, to compare with: never a reason to fail.
if ! command -v bwrap >/dev/null && can_install; then
    install bubblewrap || echo "crucible: going on without bubblewrap" >&2
fi
