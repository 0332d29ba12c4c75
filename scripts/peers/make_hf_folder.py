"""Write a Hugging Face folder in fp32 from a GGUF: `make_hf_folder.py IN OUT`.

Runs in the environment that has torch. transformers dequantises while it loads, so the folder
holds the very weights that every other peer starts from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(source: str, target: str) -> None:
    folder, name = str(Path(source).parent), Path(source).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # The weights are plain fp32 by now, but the model still calls itself quantised (and unsavable).
    model.hf_quantizer.remove_quantization_config(model)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
