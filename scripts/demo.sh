#!/usr/bin/env bash
# Sets everything up, exports SmolLM2-135M-Instruct to INT8 and holds a short conversation.
# Then talk to it yourself with the command it prints. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup_env.sh

setup_env .demo/venv export,cpu
bundle=.demo/SmolLM2-135M-Instruct-int8
if [ ! -f "$bundle/edgechat.json" ]; then
    echo "==> exporting SmolLM2-135M-Instruct to INT8"
    .demo/venv/bin/edgechat export smollm2 --int8 -o "$bundle"
fi

echo "==> a conversation of five turns; each feeds only what is new"
.demo/venv/bin/python scripts/demo_conversation.py "$bundle"

echo
echo "Your turn: .demo/venv/bin/edgechat run $bundle"
