"""Llama 2, 3, 3.1, 3.2, SmolLM2 and other models of that architecture."""

from dataclasses import dataclass

from edgekv.models.layers import Decoder, DecoderArgs, Variant


@dataclass
class ModelArgs(DecoderArgs):
    attention_bias: bool = False
    mlp_bias: bool = False


class Model(Decoder):
    def __init__(self, args: ModelArgs) -> None:
        bias = args.attention_bias
        super().__init__(args, Variant(qkv_bias=bias, o_bias=bias, mlp_bias=args.mlp_bias))
