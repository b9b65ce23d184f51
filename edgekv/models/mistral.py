"""Mistral 7B and its kin: Llama's blocks, with a trained window in the first version."""

from dataclasses import dataclass

from edgekv.models.layers import Decoder, DecoderArgs, Variant


@dataclass
class ModelArgs(DecoderArgs):
    sliding_window: int | None = None


class Model(Decoder):
    def __init__(self, args: ModelArgs) -> None:
        super().__init__(args, Variant())
