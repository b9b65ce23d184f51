"""Qwen3: norms on each head's query and key, no biases unless the configuration says so."""

from dataclasses import dataclass

from edgekv.models.layers import Decoder, DecoderArgs, Variant


@dataclass
class ModelArgs(DecoderArgs):
    attention_bias: bool = False


class Model(Decoder):
    def __init__(self, args: ModelArgs) -> None:
        bias = args.attention_bias
        super().__init__(args, Variant(qkv_bias=bias, o_bias=bias, qk_norm=True))
