"""Write a Q8_0 GGUF from the dequantised weights of another GGUF: `make_q8_gguf.py IN OUT`.

Runs in llama.cpp's environment. Matrices become Q8_0, vectors (norms) stay F32, as llama.cpp's
own quantiser does; the metadata, tokenizer included, is copied.
"""

from __future__ import annotations

import sys

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants

# The writer makes these itself.
WRITER_OWNED = {"general.architecture", "general.file_type", "general.quantization_version"}


def main(source: str, target: str) -> None:
    reader = GGUFReader(source)
    writer = GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name in WRITER_OWNED or name.startswith("GGUF."):
            continue
        kind = field.types[0]
        items = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, items)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        kind = GGMLQuantizationType.Q8_0 if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
