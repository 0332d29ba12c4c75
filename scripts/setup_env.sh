# Sourced by demo.sh and test.sh: makes a virtual environment and installs edgechat in it.
# usage: setup_env DIR EXTRAS

setup_env() {
    local dir=$1 extras=$2
    local python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "error: Python 3.10 or newer is needed; set PYTHON to one." >&2
        return 1
    fi
    if [ ! -x "$dir/bin/python" ]; then
        echo "==> making a virtual environment in $dir"
        "$python" -m venv "$dir"
    fi
    local stamp
    stamp="$extras $(cksum pyproject.toml)"
    if [ "$(cat "$dir/edgechat-installed" 2>/dev/null)" != "$stamp" ]; then
        echo "==> installing edgechat[$extras] (the first time takes a while)"
        rm -f "$dir/edgechat-installed"
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
        echo "$stamp" >"$dir/edgechat-installed"
    fi
}
