# Shared by the scripts here: what comes from Debian's packages, and a list of what could not be had.

left_out=
left_out_count=0

say() { printf '%s\n' "$*"; }

leave_out() { # name, what it costs
    left_out_count=$((left_out_count + 1))
    left_out="$left_out
  - $1: $2"
}

apt_updated=
system_package() { # Debian package...: true if they could be installed
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    if [ -z "$apt_updated" ]; then
        apt-get update -qq </dev/null >/dev/null 2>&1 || true
        apt_updated=yes
    fi
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null 2>&1
}

report_left_out() { # file
    if [ "$left_out_count" -gt 0 ]; then
        say "left out, $left_out_count:$left_out" | tee "$1"
    else
        say "nothing left out: every test can run" | tee "$1"
    fi
}
