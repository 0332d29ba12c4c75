"""GGUF files give the same bundle as the Hugging Face folder they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from edgechat.export import export_model, open_source
from edgechat.export.sources.base import load_tokenizer

TEXTS = [
    "Hello world! It's 12345 o'clock, isn't it?",
    "  leading and   inner spaces\n\n\ttabs ",
    "Grüße aus Köln, 你好世界, こんにちは, 👩‍👩‍👧 emoji",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "def f(x):\n    return x ** 2  # 3.14\n",
]


def write_gguf(folder: Path, path: Path) -> None:
    """A float32 GGUF of a Hugging Face folder the way llama.cpp's converter lays it out."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    tokens = load_tokenizer((folder / "tokenizer.json").read_text(), "").get_vocab()
    ordered = sorted(tokens, key=tokens.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(ordered)
    writer.add_token_types([3 if t.startswith("<|") else 1 for t in ordered])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, tensor in state.items():
        value = tensor.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = value.reshape(heads, 2, value.shape[0] // heads // 2, value.shape[1])
            value = halves.transpose(0, 2, 1, 3).reshape(value.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
