"""The cache policy that a user's settings come to, for a model and a prompt."""

from edgekv.cache.policy import CachePolicy, fit_window
from edgekv.config import Config
from edgekv.conversation import Prompt
from edgekv.errors import InvalidValue
from edgekv.models.shape import ModelShape


def make_policy(
    config: Config, shape: ModelShape, prompt: Prompt, pin: bool, budget: int | None
) -> CachePolicy:
    """The cache policy of a prompt under the user's settings; budget: bytes for KV.

    Raises InvalidValue or DoesNotFit where the settings contradict each other or the model.
    """
    if budget is not None and config.window is not None:
        raise InvalidValue("--kv-budget chooses the window: give it or --window, not both")
    policy = shape.policy(
        config.window, config.n_sink, config.k_bits, config.v_bits, kv_policy=config.kv_policy
    )
    pinned = prompt.pinned(policy.n_sink) if pin else 0
    policy = policy.with_pinned(pinned)
    return policy if budget is None else fit_window(policy, budget, shape.longest_window)
