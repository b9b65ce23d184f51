"""How much a model is to think before it answers, where its template lets a client say."""

from typing import Any

from edgekv.server.errors import unsupported
from edgekv.server.fields import Fields
from edgekv.tokenizer import Tokenizer

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_OFF = ("none", "minimal")


def read_thinking(fields: Fields, tokenizer: Tokenizer) -> dict[str, Any]:
    """`reasoning_effort` and `chat_template_kwargs`, as values for the template."""
    values = think(fields.choice("reasoning_effort", EFFORTS), tokenizer, "reasoning_effort")
    given = fields.nested("chat_template_kwargs")
    for key, value in (given.values if given else {}).items():
        if key not in _source(tokenizer) or key in _RESERVED:
            raise unsupported(
                f"chat_template_kwargs: this model's template has no {key[:64]!r}",
                "chat_template_kwargs",
            )
        if isinstance(value, list | dict):
            raise fields.wrong("chat_template_kwargs", "an object of plain values")
        values[key] = value
    return values


_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


def think(effort: str | None, tokenizer: Tokenizer, param: str) -> dict[str, Any]:
    """Values for the template; raises ApiError where a model cannot think as it is asked to."""
    source = _source(tokenizer)
    if effort is None:
        return {}
    if "reasoning_effort" in source:
        return {"reasoning_effort": effort}
    if "enable_thinking" in source:
        return {"enable_thinking": effort not in _OFF}
    if effort in _OFF:
        return {}
    raise unsupported(f"{param}: this model does not think before it answers", param)


def _source(tokenizer: Tokenizer) -> str:
    return tokenizer.chat_template.source if tokenizer.chat_template else ""
