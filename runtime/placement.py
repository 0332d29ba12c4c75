"""Where a chat template puts what messages say: found with marks, believed when it is proven."""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from edgechat.errors import TemplateError
from edgechat.runtime.chat_template import ChatTemplate, Message


@dataclass(frozen=True)
class Place:
    """Characters ``start`` … ``stop - 1`` of a rendered prompt are what message number
    ``message`` says from its character ``source`` on."""

    message: int
    start: int
    stop: int
    source: int


class Placement:
    """Finds messages in the prompts of one template.

    A template may change what it is given: Qwen3's drops the thinking of earlier replies, many
    trim. So each prompt is rendered twice: as it is, and with marks in place of the messages'
    text. What a template could look for in a message stays visible: white space at the ends, and
    every string that the template itself names, such as ``</think>``. If the marks, replaced by
    the text they stand for, give the prompt, then that is where the text is.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._mark = f"edgechat-{secrets.token_hex(8)}"
        self._marks = re.compile(f"{self._mark}-(\\d+)-")
        named = sorted(filter(_is_telling, template.literals), key=len, reverse=True)
        self._named = re.compile("|".join(map(re.escape, named)) or "(?!)")

    def place(self, messages: Sequence[Message]) -> tuple[str, list[Place]]:
        """The prompt for the next reply to ``messages``, and what it has of each, in order; no
        places when the template changes messages in a way that marks cannot follow."""
        prompt = self._template.render(messages)
        empty = [not message["content"].strip() for message in messages]
        for hide_empty in (True, False) if any(empty) else (True,):  # it may ask "if content"
            places = self._try(prompt, messages, hide_empty)
            if places is not None:
                return prompt, self._widen(prompt, _join(prompt, places, messages), messages)
        return prompt, []

    def _try(
        self, prompt: str, messages: Sequence[Message], mark_empty: bool
    ) -> list[Place] | None:
        marked: list[Message] = []
        hidden: list[tuple[int, int, int]] = []  # message, start and stop in it
        for number, message in enumerate(messages):
            content, parts, done = message["content"], [], 0
            for start, stop in self._hidden(content, mark_empty):
                parts += [content[done:start], f"{self._mark}-{len(hidden)}-"]
                hidden.append((number, start, stop))
                done = stop
            marked.append({**message, "content": "".join([*parts, content[done:]])})
        try:
            pieces = self._marks.split(self._template.render(marked))
        except TemplateError:  # it looks at what messages say
            return None
        places: dict[int, Place] = {}
        position = len(pieces[0])
        for place in range(1, len(pieces), 2):
            mark, after = int(pieces[place]), pieces[place + 1]
            number, start, stop = hidden[mark]
            pieces[place] = messages[number]["content"][start:stop]
            end = position + stop - start
            places.setdefault(mark, Place(number, position, end, start))
            position = end + len(after)
        return list(places.values()) if "".join(pieces) == prompt else None

    def _hidden(self, content: str, mark_empty: bool) -> list[tuple[int, int]]:
        """Ranges of ``content`` that a template cannot be interested in."""
        if not content.strip():
            return [(len(content), len(content))] if mark_empty else []
        ranges, done = [], 0
        for start, stop in [*self._tags(content), (len(content), len(content))]:
            text = content[done:start]
            if text.strip():
                first = done + len(text) - len(text.lstrip())
                ranges.append((first, first + len(text.strip())))
            done = stop
        return ranges

    def _tags(self, content: str) -> list[tuple[int, int]]:
        return [match.span() for match in self._named.finditer(content)]

    def _widen(self, prompt: str, places: list[Place], messages: Sequence[Message]) -> list[Place]:
        """Places with what stayed visible at their ends, white space or a tag at a time, where
        the prompt has it too."""
        widened: list[Place] = []
        for number, place in enumerate(places):
            said = messages[place.message]["content"]
            if place.stop - place.start == len(said):
                widened.append(place)
                continue
            first = widened[-1].stop if widened else 0
            last = places[number + 1].start if number + 1 < len(places) else len(prompt)
            ranges = [*self._hidden(said, True), *self._tags(said), (0, len(said))]
            cuts = sorted({cut for ends in ranges for cut in ends})
            start, stop, source = place.start, place.stop, place.source
            for cut in reversed(cuts[: bisect_left(cuts, source)]):
                if not prompt.endswith(said[cut:source], first, start):
                    break
                start, source = start - (source - cut), cut
            end = source + stop - start
            for cut in cuts[bisect_right(cuts, end) :]:
                if not prompt.startswith(said[end:cut], stop, last):
                    break
                stop, end = stop + cut - end, cut
            widened.append(Place(place.message, start, stop, source))
        return widened


def _is_telling(text: str) -> bool:
    """Whether a template that looks for ``text`` looks for a tag and not for a role or a word."""
    return len(text) > 1 and any(not c.isalnum() and not c.isspace() and c != "_" for c in text)


def _join(prompt: str, places: list[Place], messages: Sequence[Message]) -> list[Place]:
    """Neighbours of one message joined where the prompt has all that lies between them."""
    joined: list[Place] = []
    for place in sorted(places, key=lambda p: p.start):
        last = joined[-1] if joined else None
        if last is not None and last.message == place.message:
            said = messages[place.message]["content"]
            between = said[last.source + last.stop - last.start : place.source]
            if place.source > last.source and prompt[last.stop : place.start] == between:
                joined[-1] = Place(last.message, last.start, place.stop, last.source)
                continue
        joined.append(place)
    return joined
