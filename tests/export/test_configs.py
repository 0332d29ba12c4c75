"""Configs of released models are understood as transformers understands them, or refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from released_configs import RELEASED
from tiny_models import (
    COMMON,
    MODELS,
    bundle_logits,
    random_ids,
    transformers_logits,
    write_model,
)
from transformers import CONFIG_MAPPING

from edgechat.errors import EdgechatError, UnsupportedModelError
from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.export.spec import DecoderSpec


def spec(values: dict[str, Any], capacity: int | None = None) -> DecoderSpec:
    return find_architecture(values).spec(values, capacity)


@pytest.mark.parametrize("name", RELEASED)
def test_an_old_config_means_what_transformers_reads_in_it(name: str) -> None:
    """transformers writes its own defaults and the newest fields; the decoder stays the same."""
    values = RELEASED[name]
    read = CONFIG_MAPPING[values["model_type"]](**copy.deepcopy(values))
    assert spec(values) == spec(json.loads(read.to_json_string()))


def test_the_exported_capacity_chooses_the_longrope_list() -> None:
    values = RELEASED["Phi-4-mini-instruct"]
    within, beyond = spec(values, 4096), spec(values, 4097)
    assert within.rotary[0] and beyond.rotary[0]
    assert within.rotary[0].dim == 96
    assert within.rotary[0].inv_freq[1] > beyond.rotary[0].inv_freq[1]
    assert within.rotary[0].attention_factor == beyond.rotary[0].attention_factor > 1


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "alibi": ("falcon-7b-instruct", {"alibi": True}),
    "qk_layernorm": (  # as StableLM 2 12B
        "stablelm-2-zephyr-1_6b",
        {"qk_layernorm": True, "use_qkv_bias": False, "use_parallel_residual": True},
    ),
    "use_bidirectional_attention": ("gemma-3-1b-it", {"use_bidirectional_attention": True}),
    "full_attn_mod": ("Phi-4-mini-instruct", {"full_attn_mod": 2}),
    "chunked_attention": ("SmolLM3-3B", {"layer_types": ["chunked_attention"] * 36}),
    "layer_types": ("gemma-2-2b-it", {"layer_types": ["full_attention"] * 3}),
    "partial_rotary_factor": ("Qwen3-0.6B", {"partial_rotary_factor": 0.5}),
    "relu2": ("granite-3.3-2b-instruct", {"hidden_act": "relu2"}),
    "no_rope_layers": ("SmolLM3-3B", {"no_rope_layers": [1, 0]}),
    "divisors": ("Phi-3.5-mini-instruct", {"partial_rotary_factor": 0.5}),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_would_answer_differently_is_refused_by_name(field: str) -> None:
    name, changes = REFUSED[field]
    with pytest.raises(Exception, match=field) as caught:
        spec({**RELEASED[name], **changes})
    assert type(caught.value).__module__ == "edgechat.errors"


@pytest.mark.parametrize("name", RELEASED)
def test_a_field_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="attention_gain"):
        spec({**RELEASED[name], "attention_gain": 2.0})


DEFAULT_CONFIGS = sorted({kind for kind, _ in MODELS.values()})


def decoder_of(values: dict[str, Any]) -> tuple[DecoderSpec, Any]:
    """The spec and where the checkpoint keeps the weights."""
    architecture = find_architecture(values)
    found = architecture.spec(values, None)
    return found, vars(architecture.weights(found, read_nothing, values))["_layout"]


def read_nothing(name: str, shape: tuple[int, ...]) -> Any:
    raise AssertionError(name)


@pytest.mark.parametrize("name", [*DEFAULT_CONFIGS, *MODELS])
def test_an_absent_field_is_what_transformers_takes_for_it(name: str) -> None:
    """Of transformers' default config, and of the tiny models', each field is left out in turn."""
    kind, changes = MODELS.get(name, (name, None))
    cls = getattr(transformers, f"{kind}Config")
    usual = cls(**({} if changes is None else {**COMMON, **changes})).to_dict()
    same = 0
    for field in usual:
        without = {key: copy.deepcopy(value) for key, value in usual.items() if key != field}
        try:
            found = decoder_of(without)
        except EdgechatError as refused:
            assert field in str(refused)
            continue
        assert found == decoder_of(cls(**without).to_dict()), field
        same += 1
    assert same > len(usual) // 2


LINEAR = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    "parameters",
    [{"rope_type": "default"}, {"rope_type": "linear", "factor": 4.0}, {"rope_type": "yarn"}],
)
def test_rope_parameters_beside_another_rope_scaling_are_refused(
    parameters: dict[str, Any],
) -> None:
    """transformers 5 reads rope_scaling, which must not be dropped in silence."""
    values = {**RELEASED["Llama-3.2-1B-Instruct"], "rope_scaling": LINEAR}
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters and rope_scaling"):
        spec({**values, "rope_parameters": {"rope_theta": 500000.0, **parameters}})


def test_rope_parameters_that_say_what_rope_scaling_says_are_taken() -> None:
    values = {**RELEASED["Llama-3.2-1B-Instruct"], "rope_scaling": LINEAR}
    parameters = {"rope_theta": 500000.0, "rope_type": "linear", "factor": 2.0}
    both = {**values, "rope_parameters": parameters}
    read = CONFIG_MAPPING["llama"](**copy.deepcopy(both)).to_dict()
    assert spec(both) == spec(values) == spec(read)
    assert spec({**values, "rope_parameters": {}}) == spec(values)


def test_null_is_not_absent() -> None:
    gemma2 = {**RELEASED["gemma-2-2b-it"]}
    capped, window = spec(gemma2), gemma2["sliding_window"]
    assert (capped.attention_softcap, capped.logit_softcap, window) == (50, 30, 4096)
    names = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window")
    assert spec({k: v for k, v in gemma2.items() if k not in names}) == capped
    off = spec({**gemma2, **dict.fromkeys(names)})
    assert (off.attention_softcap, off.logit_softcap, set(off.windows)) == (0, 0, {0})
    gemma3 = RELEASED["gemma-3-1b-it"]
    assert spec({**gemma3, "sliding_window": None}).rotary == spec(gemma3).rotary
    mistral = RELEASED["Mistral-7B-v0.1"]
    assert set(spec({**mistral, "sliding_window": None}).windows) == {0}


OF_NO_EFFECT = frozenset(
    """vocab_size bos_token_id eos_token_id pad_token_id model_type transformers_version dtype
    initializer_range use_cache architectures output_attentions output_hidden_states return_dict
    problem_type is_encoder_decoder chunk_size_feed_forward id2label label2id""".split()
)
FAMILIES = """llama mistral qwen3 gemma2 gemma3 phi3 smollm3 granite olmo2 stablelm gpt_neox
    falcon""".split()


@pytest.mark.parametrize("name", [*FAMILIES, "qwen2 with windows", "falcon 40B"])
def test_every_field_that_changes_is_obeyed_or_refused(name: str, tmp_path: Path) -> None:
    """Each number and flag of the config by itself, wherever transformers makes a model of it."""
    kind, values = MODELS[name]
    usual = getattr(transformers, f"{kind}Config")(**{**COMMON, **values}).to_dict()
    ids, obeyed = random_ids(80), 0
    for number, (field, value) in enumerate(usual.items()):
        other = changed(value)
        if other is None or field in OF_NO_EFFECT or field.startswith("_"):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            write_model(folder, name, **{"initializer_range": 0.2, field: other})
            expected = transformers_logits(folder, ids)
        except Exception:  # transformers has many ways to refuse
            continue
        try:
            bundle = export_model(open_source(str(folder), print), folder / "b", "fp32")
        except EdgechatError:
            continue
        assert np.abs(bundle_logits(bundle.folder, ids, [30]) - expected).max() < 1e-3, field
        obeyed += 1
    assert obeyed >= 8


def changed(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value
    return 1.7 * value + 0.1 if isinstance(value, float) else None
