"""GGUF files give the same bundle as the Hugging Face folder they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tiny_models import bundle_logits, random_ids, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from edgechat.errors import EdgechatError, UnsupportedModelError
from edgechat.export import export_model, open_source
from edgechat.export.architectures import find_architecture
from edgechat.export.sources.base import load_tokenizer

TEXTS = [
    "Hello world! It's 12345 o'clock, isn't it?",
    "  leading and   inner spaces\n\n\ttabs ",
    "Grüße aus Köln, 你好世界, こんにちは, 👩‍👩‍👧 emoji",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "def f(x):\n    return x ** 2  # 3.14\n",
]


ARCHITECTURES = {
    "llama": "llama",
    "mistral without window": "llama",  # so does llama.cpp call it
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "phi3 longrope": "phi3",
    "smollm3": "smollm3",
    "granite": "granite",
    "olmo2": "olmo2",
    "stablelm": "stablelm",
    "stablelm parallel, biases": "stablelm",
    "gpt_neox": "gptneox",
    "gpt_neox in series": "gptneox",
    "falcon": "falcon",
    "falcon 40B": "falcon",
}
INTERLEAVED = ("llama", "smollm3", "granite")  # llama.cpp rotates neighbours in these
SORTED_QKV = ("gptneox", "falcon")
FLOATS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}


def write_gguf(
    folder: Path, path: Path, name: str = "llama", extra: dict[str, Any] | None = None
) -> None:
    """A float32 GGUF of a Hugging Face folder the way llama.cpp's converter lays it out."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        state = {k: v for k, v in state.items() if k not in ("lm_head.weight", "embed_out.weight")}
    writer = gguf.GGUFWriter(path, name)
    add_metadata(writer, config, name)
    add_tokenizer(writer, folder)
    for key, value in (extra or {}).items():
        writer.kv_data[-1].pop(key, None)
        kinds: dict[type, Callable[[str, Any], object]] = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        kinds[type(value)](key, value)
    architecture = next(a for a, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for key, value in state.items():
        stored = np.ascontiguousarray(as_converted(key, value, config, name))
        writer.add_tensor(names.get_name(key, (".weight", ".bias")), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def head_counts(config: Any, name: str) -> tuple[int, int, int]:
    """Query heads, KV heads and their size."""
    heads = config.num_attention_heads
    kv = getattr(config, "num_key_value_heads", heads)
    if name == "falcon":
        kv = config.num_kv_heads if config.new_decoder_architecture else 1
    return heads, kv, getattr(config, "head_dim", None) or config.hidden_size // heads


def add_metadata(writer: gguf.GGUFWriter, config: Any, name: str) -> None:
    heads, kv, head_dim = head_counts(config, name)
    inner = config.ffn_hidden_size if name == "falcon" else config.intermediate_size
    if name == "falcon":
        writer.add_tensor_data_layout("jploski")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    for field, key in FLOATS.items():
        if isinstance(value := getattr(config, field, None), float):
            writer.add_float32(f"{name}.{key}", value)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if hasattr(config, "use_parallel_residual"):
        writer.add_parallel_residual(config.use_parallel_residual)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if "long_factor" in rope:
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(original)) ** 0.5)
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokens = load_tokenizer((folder / "tokenizer.json").read_text(), "").get_vocab()
    ordered = sorted(tokens, key=tokens.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(ordered)
    writer.add_token_types([3 if t.startswith("<|") else 1 for t in ordered])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)


def as_converted(key: str, value: np.ndarray, config: Any, name: str) -> np.ndarray:
    """A tensor the way the converter stores it."""
    heads, kv, head_dim = head_counts(config, name)
    part = {"q_proj": heads, "k_proj": kv}.get(key.split(".")[-2])
    if part and name in INTERLEAVED:
        halves = value.reshape(part, 2, value.shape[0] // part // 2, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)
    if "query_key_value" in key and name in SORTED_QKV:
        grouped = value.reshape(kv, heads // kv + 2, head_dim, *value.shape[1:])
        kinds = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
        return np.concatenate([k.reshape(-1, *value.shape[1:]) for k in kinds])
    return value + 1 if name.startswith("gemma") and key.endswith("norm.weight") else value


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gguf_of_every_architecture_answers_as_its_folder(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {}
    if name.startswith("gemma"):  # a GGUF file does not say it: llama.cpp has it built in
        changes["query_pre_attn_scalar"] = 32
    write_model(tmp_path, name, **changes)
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path, path, ARCHITECTURES[name])
    ids = random_ids(120)
    bundles = [
        export_model(open_source(str(model), print), tmp_path / target, "fp32")
        for model, target in ((tmp_path, "a"), (path, "b"))
    ]
    a, b = (bundle_logits(bundle.folder, ids) for bundle in bundles)
    assert np.abs(a - b).max() < 1e-4 * np.abs(a).max()


def test_gemma2_gguf_without_caps_and_window_means_the_released_models(tmp_path: Path) -> None:
    """Older files do not say them; llama.cpp has them built in."""
    changes = dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"))
    write_model(tmp_path, "gemma2", sliding_window=None, **changes)
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path, path, "gemma2")
    config = open_source(str(path), print).config
    spec = find_architecture(config).spec(config, None)
    assert (spec.attention_softcap, spec.logit_softcap) == (50, 30)
    assert spec.windows == (4096, 0, 4096)


def test_gemma3_gguf_without_its_window_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "gemma3", sliding_window=None)
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path, path, "gemma3")
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        open_source(str(path), print)


def test_gguf_scaling_of_no_type_is_linear(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(tiny_folder, path, extra={"llama.rope.scaling.factor": 4.0})
    config = open_source(str(path), print).config
    (rotary,) = find_architecture(config).spec(config, None).rotaries
    assert (rotary.kind, rotary.inv_freq[0]) == ("linear", 0.25)


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_gguf_attention_factor_is_refused_by_name(
    kind: str, tiny_folder: Path, tmp_path: Path
) -> None:
    scaling: dict[str, int | float | str] = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    write_gguf(tiny_folder, tmp_path / "a.gguf", extra=scaling)
    assert open_source(str(tmp_path / "a.gguf"), print).config["rope_scaling"]["rope_type"] == kind
    scaling["llama.rope.scaling.attn_factor"] = 0.75
    write_gguf(tiny_folder, tmp_path / "b.gguf", extra=scaling)
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.attn_factor"):
        open_source(str(tmp_path / "b.gguf"), print)


def test_gguf_settings_nobody_knows_are_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, "gemma3")
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path, path, "gemma3", {"gemma3.altup.num_inputs": 4})
    with pytest.raises(UnsupportedModelError, match=r"gemma3\.altup\.num_inputs"):
        open_source(str(path), print)


def test_lists_of_equal_sizes_mean_that_size(tiny_folder: Path, tmp_path: Path) -> None:
    lists = {"attention.head_count_kv": [2] * 3, "feed_forward_length": [160] * 3}
    write_gguf(tiny_folder, tmp_path / "a.gguf")
    write_gguf(tiny_folder, tmp_path / "b.gguf", extra={f"llama.{k}": v for k, v in lists.items()})
    a, b = (open_source(str(tmp_path / f"{name}.gguf"), print).config for name in "ab")
    assert a == b
    extra = {"llama.attention.head_count_kv": [2, 4, 2]}
    write_gguf(tiny_folder, tmp_path / "c.gguf", extra=extra)
    with pytest.raises(UnsupportedModelError, match=r"head_count_kv = \[2, 4, 2\]"):
        open_source(str(tmp_path / "c.gguf"), print)


def test_which_layers_slide_may_be_told(tmp_path: Path) -> None:
    write_model(tmp_path, "gemma3")
    for number, (pattern, slides) in enumerate(
        [([True, False] * 3 + [True], [1, 0] * 3 + [1]), (2, [1, 0] * 3 + [1])]
    ):
        path = tmp_path / f"{number}.gguf"
        write_gguf(tmp_path, path, "gemma3", {"gemma3.attention.sliding_window_pattern": pattern})
        config = open_source(str(path), print).config
        windows = find_architecture(config).spec(config, None).windows
        assert windows == tuple(24 * slide for slide in slides)


def test_a_part_of_a_model_is_no_model(tiny_folder: Path, tmp_path: Path) -> None:
    write_gguf(tiny_folder, tmp_path / "m.gguf", extra={"split.count": 3})
    with pytest.raises(UnsupportedModelError, match="one of 3 parts"):
        open_source(str(tmp_path / "m.gguf"), print)


def test_a_file_cut_short_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(tiny_folder, path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(EdgechatError, match="not a readable GGUF"):
        open_source(str(path), print)


def test_a_type_that_cannot_be_dequantised_is_known_from_the_header(
    tiny_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(tiny_folder, path)
    source = open_source(str(path), print)
    tensor = source._tensors["blk.0.ffn_up.weight"]  # type: ignore[attr-defined]
    changed = tensor._replace(tensor_type=gguf.GGMLQuantizationType.I8)
    source._tensors["blk.0.ffn_up.weight"] = changed  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedModelError, match="type I8"):
        source.shape("model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize("tied", [False, True])
def test_gguf_and_folder_give_the_same_weights(
    tied: bool, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder(seed=4, tie_word_embeddings=tied)
    path = tmp_path / "model.gguf"
    write_gguf(folder, path)
    a = export_model(open_source(str(folder), print), tmp_path / "a", "fp32")
    b = export_model(open_source(str(path), print), tmp_path / "b", "fp32")
    assert a.manifest.files["model.data"] == b.manifest.files["model.data"]
    assert a.manifest.files["model.onnx"] == b.manifest.files["model.onnx"]
    assert a.manifest.dims == b.manifest.dims


@pytest.mark.slow
def test_real_gguf_equals_its_folder(
    smollm2_gguf: Path, smollm2_fp32: Path, tmp_path: Path
) -> None:
    """transformers reads the GGUF by itself; saved as a folder it must give the same bundle."""
    load = {"gguf_file": smollm2_gguf.name}
    folder = tmp_path / "hf"
    read = AutoModelForCausalLM.from_pretrained(smollm2_gguf.parent, dtype=torch.float32, **load)
    config = read.config
    del config.quantization_config  # the weights in memory are plain float32 by now
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2_gguf.parent, **load).save_pretrained(folder)
    bundle = export_model(open_source(str(folder), print), tmp_path / "b", "fp32")
    assert (bundle.folder / "model.data").read_bytes() == (smollm2_fp32 / "model.data").read_bytes()


@pytest.mark.slow
def test_real_gguf_tokenizer_equals_transformers(smollm2_gguf: Path, smollm2_fp32: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)
    ours = load_tokenizer((smollm2_fp32 / "tokenizer.json").read_text(), "")
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids, skip_special_tokens=False) == text
