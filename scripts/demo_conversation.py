"""A scripted conversation that shows what each turn cost. usage: demo_conversation.py BUNDLE"""

from __future__ import annotations

import sys

from edgechat import Chat, SamplingSettings
from edgechat.cli.interactive import stats_line

TURNS = (
    "Hello! My name is Ada. I am here with my son, who is seven.",
    "What is the capital of France?",
    "Name three animals that live in the sea.",
    "Tell my son a fact about sharks.",
    "Thank you! When do you close?",
)


def main() -> None:
    system = "You are a friendly guide in a museum."
    with Chat.open(sys.argv[1], system=system, sampling=SamplingSettings(seed=1)) as chat:
        for text in TURNS:
            print(f"\n> {text}")
            for piece in chat.stream(text, max_tokens=80):
                print(piece, end="", flush=True)
            print(f"\n  {stats_line(chat)}")


if __name__ == "__main__":
    main()
