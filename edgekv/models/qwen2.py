"""Qwen2 and Qwen2.5: biases on queries, keys and values."""

from dataclasses import dataclass

from edgekv.models.layers import Decoder, DecoderArgs, Variant


@dataclass
class ModelArgs(DecoderArgs):
    pass


class Model(Decoder):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args, Variant(qkv_bias=True))
