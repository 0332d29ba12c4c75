"""Tries a chat template before a bundle is made with it."""

from __future__ import annotations

from edgechat.errors import SourceError, TemplateError
from edgechat.runtime.chat_template import ChatTemplate

TALK = [
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "How are you?"},
]


def check_template(source: str, special: dict[str, str]) -> None:
    """SourceError where a template cannot be read, or cannot tell a short conversation."""
    try:
        template = ChatTemplate(source, special)
        for count in (1, 3):
            template.render(TALK[:count])
    except TemplateError as error:
        raise SourceError(
            f"the model's chat template cannot be used ({str(error).rstrip('.')}); put one that "
            "works into the model folder as chat_template.jinja, or give it with --chat-template."
        ) from None
