"""Templates that drop earlier thinking: prompts as in transformers, the cache used up to there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from templates import DEEPSEEK, QWEN3, TRIMMED
from tiny_models import write_model, write_tokenizer
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from edgechat.bundle import load_bundle
from edgechat.chat import Chat
from edgechat.export import export_model, open_source
from edgechat.runtime.kv_cache import KVCache
from edgechat.runtime.onnx_engine import OnnxEngine
from edgechat.runtime.policies import make_policy
from edgechat.runtime.text import TextCodec, Turn

Tell = Callable[..., str]
THOUGHT = "<think>\nThe user asks.\n</think>\n\n"


@pytest.fixture(scope="module")
def make_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Bundles of a tiny Qwen3 with a template, whose tokenizer joins line feeds."""

    def make(template: str) -> Path:
        folder = tmp_path_factory.mktemp("qwen3")
        write_model(folder, "qwen3", max_position_embeddings=1024)
        write_tokenizer(folder, template)
        path = folder / "tokenizer.json"
        data = json.loads(path.read_text())
        for pair in (["Ċ", "Ċ"], [".", "Ċ"]):
            data["model"]["vocab"]["".join(pair)] = len(data["model"]["vocab"])
            data["model"]["merges"].append(pair)
        tokenizer = Tokenizer.from_str(json.dumps(data))
        tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
        tokenizer.save(str(path))
        return export_model(open_source(str(folder), print), folder / "bundle", "fp32").folder

    return make


@pytest.fixture(scope="module")
def qwen3(make_bundle: Callable[[str], Path]) -> Path:
    return make_bundle(QWEN3)


def transformers_prompt(bundle: Path, messages: list[dict[str, str]]) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(bundle / "tokenizer.json"))
    tokenizer.chat_template = (bundle / "chat_template.jinja").read_text()
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def history(chat: Chat) -> list[dict[str, str]]:
    turns = [*chat._conversation.system_turns(), *chat._conversation.turns]
    return [turn.message for turn in turns]


def rendered(chat: Chat) -> str:
    ids = chat._conversation.transcript.ids.tolist()
    return chat._codec.tokenizer.decode(ids, skip_special_tokens=False)


def check_logits(chat: Chat, bundle: Path) -> None:
    """The cache is that of a model which has read the transcript and nothing else."""
    c = chat._conversation
    assert c.cache.fed == c.cache.slots.length == len(c.transcript)
    cache = KVCache(OnnxEngine(load_bundle(bundle), 1024, threads=1), make_policy("full", 0))
    assert c.cache.logits is not None
    assert np.abs(c.cache.logits - cache.feed(c.transcript.ids)).max() < 1e-3


@pytest.mark.parametrize("threshold", [0.0, 0.9])
def test_thinking_is_forgotten_turn_by_turn(
    threshold: float,
    qwen3: Path,
    open_chat: Callable[..., Chat],
    tell: Tell,
    tmp_path: Path,
) -> None:
    chat = open_chat(qwen3, 900, delta_threshold=threshold)
    shared = 0
    for number in range(4):
        before, asked = history(chat), f"question {number}"
        reply = f"{THOUGHT if number != 2 else ''}Answer {number}.\n\nMore."
        tell(chat, asked, reply)
        prompt = transformers_prompt(qwen3, [*before, {"role": "user", "content": asked}])
        assert rendered(chat) == prompt + reply
        check_logits(chat, qwen3)
        assert chat.usage is not None and chat.usage.reused_tokens == shared
        shared = len(chat._conversation.transcript)
        if THOUGHT in reply:  # which the next prompt does without
            shared -= chat.usage.reply_tokens
        if number == 2:
            chat.save(tmp_path / "session")
            chat.close()
            chat = Chat.load(qwen3, tmp_path / "session")
    if threshold == 0:
        chat.edit(2, "something else")
        chat.edit(-1, THOUGHT + "Something else.")
        before = history(chat)
        tell(chat, "next", "ok")
        prompt = transformers_prompt(qwen3, [*before, {"role": "user", "content": "next"}])
        assert rendered(chat) == prompt + "ok"
        check_logits(chat, qwen3)


def test_generated_ids_outlive_the_thinking_before_them(
    qwen3: Path, open_chat: Callable[..., Chat]
) -> None:
    """The tokenizer would write "ab" and the two line feeds as one token each."""
    codec = TextCodec(load_bundle(qwen3))
    a, b, feed = (codec.tokenizer.token_to_id(t) for t in ("a", "b", "Ċ"))
    answer = [a, b, feed, feed, a, b]
    reply = Turn("assistant", THOUGHT + "ab\n\nab", [*codec.encode(THOUGHT), *answer])
    prompt = codec.prompt([Turn("user", "x"), reply, Turn("user", "y")])
    assert prompt.spans[1] is not None
    assert prompt.ids[slice(*prompt.spans[1])].tolist() == answer
    whole = codec.prompt([Turn("user", "x"), reply])
    assert reply.ids is not None and whole.spans[1] is not None
    assert whole.ids[slice(*whole.spans[1])].tolist() == reply.ids


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (["H", "i", ".Ċ"], ["H", "i", "."]),  # the template cuts through the last token
        (["ĊĊ", "a", "b", "ĊĊ"], ["a", "b"]),
        (["Ċ", "Ċ", "ĊĊ"], []),
        (["ĊĊ", ".Ċ", "ĊĊ"], ["."]),
        (["Ġ", "Ã", "©", "Ġ"], ["Ã", "©"]),  # a character of two tokens
    ],
)
def test_a_token_that_the_template_cuts_is_tokenised_again(
    reply: list[str], kept: list[str], make_bundle: Callable[[str], Path]
) -> None:
    bundle = make_bundle(TRIMMED)
    codec = TextCodec(load_bundle(bundle))
    ids = [codec.tokenizer.token_to_id(token) for token in reply]
    turns = [Turn("user", "x"), Turn("assistant", codec.decode(ids), ids), Turn("user", "y")]
    prompt = codec.prompt(turns)
    text = codec.tokenizer.decode(prompt.ids.tolist(), skip_special_tokens=False)
    assert text == transformers_prompt(bundle, [turn.message for turn in turns])
    assert prompt.spans[1] is not None
    names = [codec.tokenizer.id_to_token(i) for i in prompt.ids[slice(*prompt.spans[1])]]
    assert names == kept


def test_thinking_that_the_prompt_opens(
    make_bundle: Callable[[str], Path], open_chat: Callable[..., Chat], tell: Tell
) -> None:
    bundle = make_bundle(DEEPSEEK)
    chat = open_chat(bundle, 900)
    for number in range(3):
        before, asked, reply = history(chat), f"q{number}", f"Well.\n</think>\n\nAnswer {number}."
        tell(chat, asked, reply)
        prompt = transformers_prompt(bundle, [*before, {"role": "user", "content": asked}])
        assert rendered(chat) == prompt + reply
        check_logits(chat, bundle)


@pytest.mark.parametrize("policy", ["window", "key"])
def test_thinking_longer_than_the_cache(
    policy: str,
    qwen3: Path,
    open_chat: Callable[..., Chat],
    tell: Tell,
    check_cache: Callable[..., None],
) -> None:
    chat = open_chat(qwen3, 96, policy=policy)
    for number in range(6):
        before, asked = history(chat), f"question {number}"
        reply = f"<think>\n{'hm ' * (90 if number % 2 else 9)}\n</think>\n\nAnswer {number}."
        tell(chat, asked, reply)
        prompt = transformers_prompt(qwen3, [*before, {"role": "user", "content": asked}])
        assert rendered(chat) == prompt + reply
        check_cache(chat._conversation, qwen3)
