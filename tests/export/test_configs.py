"""Configs of released models are understood as transformers understands them, or refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from released_configs import RELEASED
from transformers import CONFIG_MAPPING

from edgechat.errors import UnsupportedModelError
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
    "qk_layernorm": ("stablelm-2-zephyr-1_6b", {"qk_layernorm": True}),
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
