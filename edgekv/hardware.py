"""What memory bandwidth allows on Apple's chips: a prediction, and no measurement.

Decoding one token reads every weight and every cached number in reach once. No machine reads
faster than its memory's peak, so those bytes over the peak are the shortest time there is; real
kernels reach 70 to 85 % of it.
"""

from dataclasses import dataclass

from edgekv.cache.policy import CachePolicy
from edgekv.cache.traffic import token_nbytes
from edgekv.errors import InvalidValue

GB_PER_S = {
    "M1": 68,
    "M1 Pro": 200,
    "M1 Max": 400,
    "M1 Ultra": 800,
    "M2": 100,
    "M2 Pro": 200,
    "M2 Max": 400,
    "M2 Ultra": 800,
    "M3": 100,
    "M3 Pro": 150,
    "M3 Max": 400,
    "M3 Ultra": 819,
    "M4": 120,
    "M4 Pro": 273,
    "M4 Max": 546,
    "M5": 153,
    "M5 Pro": 307,
    "M5 Max": 614,
}
"""Peak memory bandwidth by Apple's specifications, of the larger variant where there are two."""


@dataclass(frozen=True)
class Prediction:
    """The least that one token takes on a chip when the window is full.

    weight_nbytes and kv_nbytes: bytes read of the weights and by attention; seconds: at the peak.
    """

    chip: str
    gb_per_s: int
    weight_nbytes: int
    kv_nbytes: int

    @property
    def seconds(self) -> float:
        return (self.weight_nbytes + self.kv_nbytes) / (self.gb_per_s * 1e9)

    @property
    def tokens_per_s(self) -> float:
        return 1 / self.seconds


def predict(chip: str, policy: CachePolicy, n_heads: int, weight_nbytes: int) -> Prediction:
    """The floor for a model of so many query heads a layer and bytes of weights.

    chip: a name of GB_PER_S in any case, "m4-max" too. Raises InvalidValue for another.
    """
    names = {name.lower(): name for name in GB_PER_S}
    name = names.get(chip.lower().replace("-", " "))
    if name is None:
        raise InvalidValue(f"hardware must be one of {', '.join(GB_PER_S)}, got {chip!r}")
    return Prediction(name, GB_PER_S[name], weight_nbytes, token_nbytes(policy, n_heads))
