"""A scripted conversation that shows what each turn cost. usage: demo_conversation.py BUNDLE"""

from __future__ import annotations

import sys

from edgechat import Chat
from edgechat.cli.interactive import stats_line

TURNS = (
    "Hello! My name is Ada and I live in Lisbon.",
    "What is the capital of France?",
    "Name three animals that live in the sea.",
    "Which of them is the largest?",
    "What is my name, and where do I live?",
)


def main() -> None:
    with Chat.open(sys.argv[1], system="You are a friendly guide in a museum.") as chat:
        for text in TURNS:
            print(f"\n> {text}")
            for piece in chat.stream(text, max_tokens=80):
                print(piece, end="", flush=True)
            print(f"\n  {stats_line(chat)}")


if __name__ == "__main__":
    main()
