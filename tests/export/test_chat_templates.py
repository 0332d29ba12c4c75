"""A bundle gets the chat template that is asked for, the model's own, or a plain one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_gguf import write_gguf

from edgechat.chat import Chat
from edgechat.errors import EdgechatError
from edgechat.export import export_model, open_source
from edgechat.export.chat_templates import PLAIN_SOURCE, choose_template
from edgechat.runtime.chat_template import ChatTemplate
from edgechat.runtime.sampling import SamplingSettings

TWO = {"default": "a", "tool_use": "b"}


def test_the_default_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("c")
    assert choose_template(TWO, None).source == "a"
    assert choose_template(TWO, "tool_use").source == "b"
    assert choose_template(TWO, str(tmp_path / "mine.jinja")).source == "c"
    assert choose_template({"rag": "d"}, None).source == "d"
    (note,) = choose_template(TWO, None).notes
    assert "tool_use" in note


@pytest.mark.parametrize(
    ("templates", "wanted", "message"),
    [
        (TWO, "rag", r"no file, .* \(it has default, tool_use\)"),
        ({}, "rag", r"\(it has none\)"),
        ({"rag": "a", "tool_use": "b"}, None, r"\(rag, tool_use\) and none is called 'default'"),
    ],
)
def test_a_template_that_is_not_there(
    templates: dict[str, str], wanted: str | None, message: str
) -> None:
    with pytest.raises(EdgechatError, match=message):
        choose_template(templates, wanted)


def test_the_plain_template() -> None:
    roles = ("system", "user", "assistant", "user")
    talk = [{"role": role, "content": f" {role}'s text\n"} for role in roles]
    assert ChatTemplate(PLAIN_SOURCE, {}).render(talk) == (
        "system's text\n\nUser: user's text\nAssistant: assistant's text\nUser: user's text\n"
        "Assistant:"
    )


def test_a_model_without_a_template_talks_and_stops_before_the_user(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder()
    path = tmp_path / "base.gguf"
    write_gguf(folder, path)  # which has no template
    notes: list[str] = []
    source = open_source(str(path), notes.append)
    bundle = export_model(source, tmp_path / "bundle", "fp32")
    assert bundle.manifest.tokens.stops == ("\nUser:",)
    with Chat.open(bundle.folder, sampling=SamplingSettings(temperature=0)) as chat:
        said = chat._codec.encode(" Hello!\nUser: And then?")
        chat._sampler.sample = lambda *_: said.pop(0)  # type: ignore[method-assign]
        reply = chat.say("Hi", max_tokens=60)
        assert (reply.text, reply.finish_reason) == (" Hello!", "stop")
        text = chat._codec.tokenizer.decode(
            chat._conversation.prompt().ids.tolist(), skip_special_tokens=False
        )
    assert text == "User: Hi\nAssistant: Hello!\nAssistant:"
