"""Which of a model's chat templates a bundle gets, and the plain one for models without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgechat.errors import SettingsError, SourceError
from edgechat.export.sources.base import read_text

DEFAULT, PLAIN = "default", "plain"
# Base models continue it like any dialogue; such a reply ends where they go on for the user.
PLAIN_SOURCE = """\
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- message.content | trim + '\\n\\n' -}}
    {%- else -%}
        {{- message.role | capitalize + ': ' + message.content | trim + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{{- 'Assistant:' -}}
"""
PLAIN_STOPS = ("\nUser:",)


@dataclass(frozen=True)
class ChosenTemplate:
    """``stops`` end a reply; ``notes`` are for the user."""

    name: str
    source: str
    stops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def choose_template(templates: Mapping[str, str], wanted: str | None) -> ChosenTemplate:
    """The template called ``wanted`` or in the file ``wanted``, else the model's default.

    ``templates`` are the model's by name. Raises SettingsError when there is none that is wanted,
    SourceError when the file cannot be read or none of several is the default.
    """
    names = ", ".join(sorted(templates))
    if wanted is not None and wanted in templates:
        return ChosenTemplate(wanted, templates[wanted])
    if wanted is not None:
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise SettingsError(
                f"--chat-template {wanted} is no file, and the model has no template of that name "
                f"(it has {names or 'none'})."
            )
        return ChosenTemplate(path.name, read_text(path))
    if not templates:
        note = (
            "warning: the model has no chat template, so it was perhaps not trained to chat; it "
            "gets a plain one (User: … Assistant: …). Give another with --chat-template FILE."
        )
        return ChosenTemplate(PLAIN, PLAIN_SOURCE, PLAIN_STOPS, (note,))
    if len(templates) > 1 and DEFAULT not in templates:
        raise SourceError(
            f"the model has several chat templates ({names}) and none is called 'default'; choose "
            "one with --chat-template NAME."
        )
    name = DEFAULT if DEFAULT in templates else names
    others = ", ".join(sorted(templates.keys() - {name}))
    notes = (f"note: other chat templates (--chat-template): {others}.",) if others else ()
    return ChosenTemplate(name, templates[name], notes=notes)
