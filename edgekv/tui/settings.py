"""What a conversation is made with: the configuration, and what its session keeps of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from edgekv import config
from edgekv.cache.policy import CachePolicy
from edgekv.config import Config
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.models.shape import ModelShape
from edgekv.policies import make_policy

if TYPE_CHECKING:
    from edgekv.conversation import Prompt

MEMORY = ("window", "n_sink", "k_bits", "v_bits", "kv_policy")
SAMPLING = ("temp", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens")


@dataclass(frozen=True)
class Settings:
    """Settings of a chat.

    budget: bytes for KV that choose the window, where no window is given. overflow: past the
    window, "roll" or "error". think: True, False, or None for what the model does by itself;
    think_tokens: where thought is cut off.
    given: keys of the command line, which no session may override.
    """

    config: Config
    pin_system: bool = True
    budget: int | None = None
    overflow: str = "roll"
    stops: tuple[str, ...] = ()
    think: bool | None = None
    think_tokens: int | None = None
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def stored(self) -> dict[str, Any]:
        """What a session keeps, as JSON values."""
        known = asdict(self.config)
        own = {"pin_system": self.pin_system, "think": self.think}
        return {key: known[key] for key in (*MEMORY, *SAMPLING, "system")} | own

    def of_session(self, stored: Mapping[str, Any]) -> "Settings":
        """These settings with those of a session, which lose to the command line.

        What this version does not know is left out; what it cannot use is too.
        """
        usable: dict[str, Any] = {}
        for key in (*MEMORY, *SAMPLING, "system"):
            if key in stored and key not in self.given:
                try:
                    value = stored[key]
                    usable[key] = None if value is None else config.check(key, value, key)
                except InvalidValue:
                    continue
        think, pin = stored.get("think"), stored.get("pin_system")
        return replace(
            self,
            config=replace(self.config, **usable),
            pin_system=pin if isinstance(pin, bool) else self.pin_system,
            think=think if isinstance(think, bool) else None,
        )

    def changed(self, **values: object) -> "Settings":
        """With other values of `config`, checked. Raises InvalidValue."""
        checked: dict[str, Any] = {
            key: None if value is None else config.check(key, value, key)
            for key, value in values.items()
        }
        return replace(self, config=replace(self.config, **checked))

    def policy(self, shape: ModelShape, prompt: "Prompt") -> CachePolicy:
        """The cache policy of a prompt. Raises InvalidValue or DoesNotFit."""
        budget = self.budget if self.config.window is None else None
        return make_policy(self.config, shape, prompt, self.pin_system, budget)

    def longest(self, policy: CachePolicy, prompt_tokens: int) -> int:
        """Tokens a reply may have; fewer where the window must not roll. Raises DoesNotFit."""
        if self.overflow == "roll":
            return self.config.max_tokens
        room = policy.last_slot + 1 - prompt_tokens
        if room < 1:
            raise DoesNotFit(
                f"the conversation has {prompt_tokens:,} tokens, but the cache holds "
                f"{policy.last_slot + 1:,}: a larger window (F3), /new, or --overflow roll"
            )
        return min(self.config.max_tokens, room)
