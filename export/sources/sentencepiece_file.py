"""Reads a SentencePiece ``tokenizer.model``: a protocol buffer of which few fields matter."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.sources.sentencepiece import SPACE, UNUSED, USER_DEFINED, Pieces

REMEDY = (
    "load the tokenizer with transformers' AutoTokenizer and save it there with save_pretrained"
)
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
Field = descriptor_pb2.FieldDescriptorProto
# Number, type and default of the fields of sentencepiece_model.proto that are read.
SCHEMA: dict[str, dict[str, tuple[int, Any, str]]] = {
    "Piece": {
        "piece": (1, Field.TYPE_BYTES, ""),
        "score": (2, Field.TYPE_FLOAT, "0"),
        "type": (3, Field.TYPE_INT32, "1"),
    },
    "TrainerSpec": {
        "model_type": (3, Field.TYPE_INT32, "1"),
        "treat_whitespace_as_suffix": (24, Field.TYPE_BOOL, "false"),
        "byte_fallback": (35, Field.TYPE_BOOL, "false"),
        "unk_id": (40, Field.TYPE_INT32, "0"),
        "bos_id": (41, Field.TYPE_INT32, "1"),
        "eos_id": (42, Field.TYPE_INT32, "2"),
    },
    "NormalizerSpec": {
        "precompiled_charsmap": (2, Field.TYPE_BYTES, ""),
        "add_dummy_prefix": (3, Field.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": (4, Field.TYPE_BOOL, "true"),
        "escape_whitespaces": (5, Field.TYPE_BOOL, "true"),
    },
}
PARTS = {"pieces": (1, "Piece"), "trainer_spec": (2, "TrainerSpec")}
PARTS |= {"normalizer_spec": (3, "NormalizerSpec"), "denormalizer_spec": (5, "NormalizerSpec")}


def read_pieces(data: bytes, what: str) -> tuple[Pieces, int | None, int | None]:
    """The vocabulary in the bytes of a ``tokenizer.model``, and its begin and end ids.

    ``what`` names the file. Raises SourceError when it is none, UnsupportedModelError when the
    ``tokenizers`` library cannot do what it asks for.
    """
    model = _model_class()()
    try:
        model.ParseFromString(data)
        is_whole = all(map(model.HasField, ("trainer_spec", "normalizer_spec")))
        tokens = [piece.piece.decode() for piece in model.pieces]
    except (DecodeError, UnicodeDecodeError):
        is_whole, tokens = False, []
    if not is_whole or not tokens:  # such as Llama 3's, which is a text of tiktoken's
        raise SourceError(f"{what} is no SentencePiece model, or not all of one; {REMEDY}.")
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    types = [piece.type for piece in model.pieces]
    unsupported = {
        "a model type that is neither BPE nor unigram": trainer.model_type not in (UNIGRAM, BPE),
        "spaces at the end of words": trainer.treat_whitespace_as_suffix,
        "spaces that are not escaped": not normalizer.escape_whitespaces,
        "rules for decoding": bool(model.denormalizer_spec.precompiled_charsmap),
        "unused pieces": UNUSED in types,
    }
    for feature, is_used in unsupported.items():
        if is_used:
            raise UnsupportedModelError(f"{what} has {feature}, which is not supported; {REMEDY}.")
    pieces = Pieces(
        tokens,
        [piece.score for piece in model.pieces],
        types,
        trainer.unk_id,
        unigram=trainer.model_type == UNIGRAM,
        byte_fallback=trainer.byte_fallback,
        prefix="every" if normalizer.add_dummy_prefix else "none",
        one_space=normalizer.remove_extra_whitespaces,
        charsmap=normalizer.precompiled_charsmap,
    )
    marks = [t for t, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    if pieces.prefix == "none" and not (pieces.unigram or pieces.one_space or pieces.charsmap):
        marks = [mark for mark in marks if SPACE in mark]  # the others can be told from raw text
    pieces.whole = frozenset(marks)
    ids = (i if 0 <= i < len(tokens) else None for i in (trainer.bos_id, trainer.eos_id))
    return pieces, next(ids), next(ids)


def _model_class() -> Any:
    """The class of a ModelProto, in a pool of its own: other packages register the same names."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tokenizer.proto", package="edgechat", syntax="proto2"
    )
    for name, fields in SCHEMA.items():
        part = file.message_type.add(name=name)
        for field, (number, kind, default) in fields.items():
            part.field.add(
                name=field, number=number, type=kind, label=Field.LABEL_OPTIONAL
            ).default_value = default
    whole = file.message_type.add(name="Model")
    for field, (number, part_name) in PARTS.items():
        label = Field.LABEL_REPEATED if field == "pieces" else Field.LABEL_OPTIONAL
        whole.field.add(
            name=field,
            number=number,
            type=Field.TYPE_MESSAGE,
            type_name=f".edgechat.{part_name}",
            label=label,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("edgechat.Model"))
