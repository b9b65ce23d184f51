"""The options that commands share, and what they come to for a model."""

import re
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


class Size(click.ParamType[int]):
    """A number of bytes: 268435456, 256MB (decimal), 256MiB (binary)."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bytes. Fails as a usage error."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", str(value).strip().lower())
        if match is None:
            self.fail(f"expected a size such as 256MB or 1GiB, got {value!r}", param, ctx)
        return int(float(match[1]) * _UNITS[match[2] or ""])


def chain(*decorators: Decorator) -> Decorator:
    """Several decorators as one, the first outermost."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


model_option = click.option(
    "-m", "--model", metavar="NAME|PATH|REPO", help="Alias, folder, .gguf file or hub repository."
)

policy_options = chain(
    click.option("--window", type=int, metavar="N", help="Newest tokens kept (default: by model)."),
    click.option("--n-sink", type=int, metavar="N", help="First tokens kept for good (default 4)."),
    click.option("--kv-bits", type=int, metavar="B", help="2, 3, 4, 8 or 16 (default 4)."),
    click.option("--k-bits", type=int, metavar="B", help="Bits of keys alone."),
    click.option("--v-bits", type=int, metavar="B", help="Bits of values alone."),
    click.option("--kv-policy", metavar="FILE", help="Bits by layer, as `eval tune` writes them."),
    click.option(
        "--kv-budget", type=Size(), metavar="SIZE", help="Bytes for KV, e.g. 256MB: sets --window."
    ),
)

cache_options = chain(
    policy_options,
    click.option(
        "--pin-system/--no-pin-system",
        default=True,
        show_default=True,
        help="Keep the system message for good.",
    ),
    click.option(
        "--overflow",
        type=click.Choice(["roll", "error"]),
        default="roll",
        show_default=True,
        help="Past the window: forget the oldest tokens, or refuse.",
    ),
)

draw_options = chain(
    click.option("--max-tokens", type=int, metavar="N", help="Longest reply (default 1024)."),
    click.option("--temp", type=float, metavar="F", help="Temperature; 0, the default, is greedy."),
    click.option("--top-p", type=float, metavar="F", help="Nucleus (default 0.95)."),
    click.option("--top-k", type=int, metavar="N", help="Best tokens to draw from; 0 is all."),
    click.option("--min-p", type=float, metavar="F", help="Least share of the best token's."),
    click.option("--repetition-penalty", type=float, metavar="F", help="1 is none."),
    click.option("--seed", type=int, metavar="N", help="Same seed, same reply."),
)

sampling_options = chain(
    click.option("--system", metavar="TEXT", help="System message."),
    draw_options,
    click.option("--stop", "stops", multiple=True, metavar="TEXT", help="End before this text."),
)

session_options = chain(
    click.option("--session", metavar="NAME", help="Go on with this session, or begin it."),
    click.option("-c", "--continue", "last", is_flag=True, help="Go on with the last session."),
    click.option("--no-persist", is_flag=True, help="Leave no byte on disk."),
)


CACHE_SETTINGS = ("window", "n_sink", "kv_bits", "k_bits", "v_bits", "kv_policy")
"""Keys of the configuration that policy_options set."""
