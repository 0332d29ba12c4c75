#!/usr/bin/env bash
# Sets everything up and runs linter, type checker and tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup_env.sh

setup_env .test/venv export,cpu,jetpack7,rtx,dev
bin=.test/venv/bin

# types to check the native runtime with; its dependency, TensorRT itself, is not needed
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-deps tensorrt-stubs==10.13.0.35.1

echo "==> ruff"
"$bin/ruff" check .
"$bin/ruff" format --check .

echo "==> mypy (on a tree of links that looks like the installed package)"
rm -rf .test/types
mkdir -p .test/types/edgechat
for path in edgechat/*; do ln -s "$PWD/$path" ".test/types/$path"; done
for path in export runtime profiles; do ln -s "$PWD/$path" ".test/types/edgechat/$path"; done
packages=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$packages/tensorrt" "$packages/tensorrt_bindings" .test/types
# five lines of the stubs are not Python: parameters called "in", one without a default behind others
sed -i -e 's/, in: /, input_: /' -e 's/channel_axis: int)/channel_axis: int = 0)/' \
    .test/types/tensorrt_bindings/tensorrt.pyi
MYPYPATH=.test/types "$bin/mypy" --config-file pyproject.toml -p edgechat

echo "==> pytest"
"$bin/python" -m pytest "$@"
