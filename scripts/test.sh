#!/usr/bin/env bash
# Sets everything up and runs linter, type checker and tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup_env.sh

setup_env .test/venv export,cpu,dev
bin=.test/venv/bin

echo "==> ruff"
"$bin/ruff" check .
"$bin/ruff" format --check .

echo "==> mypy (on a tree of links that looks like the installed package)"
rm -rf .test/types
mkdir -p .test/types/edgechat
for path in edgechat/*; do ln -s "$PWD/$path" ".test/types/$path"; done
for path in export runtime profiles; do ln -s "$PWD/$path" ".test/types/edgechat/$path"; done
MYPYPATH=.test/types "$bin/mypy" --config-file pyproject.toml -p edgechat

echo "==> pytest"
"$bin/python" -m pytest "$@"
