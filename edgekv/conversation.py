"""A conversation made into a prompt: the template's text, its tokens, and what of it to pin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from edgekv.errors import InvalidValue, UnsupportedModel
from edgekv.metal.tile import BLOCK

if TYPE_CHECKING:
    from edgekv.template import ChatTemplate
    from edgekv.tokenizer import Tokenizer

Message = Mapping[str, Any]

MAX_PROMPT = 512 * 1024
"""Characters of one prompt at the most: beyond it a reply would take minutes to begin."""


@dataclass(frozen=True)
class Prompt:
    """Token ids of a prompt, and how many of the first ones are the system message."""

    tokens: tuple[int, ...]
    n_system: int = 0

    def pinned(self, n_sink: int) -> int:
        """Tokens behind the sinks to pin, in whole blocks, so that the system message stays."""
        return max(0, -(-(self.n_system - n_sink) // BLOCK)) * BLOCK


def checked(text: str) -> str:
    """The text of a prompt. Raises InvalidValue when it is empty, no Unicode or over the limit."""
    if not text.strip():
        raise InvalidValue("the prompt is empty: give some text")
    if len(text) > MAX_PROMPT:
        raise InvalidValue(
            f"the prompt has {len(text):,} characters, over the limit of {MAX_PROMPT:,}: "
            "split it into several"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(
            f"the prompt is not valid UTF-8 at character {error.start}: give it as UTF-8"
        ) from None
    return text


def raw_prompt(tokenizer: "Tokenizer", text: str) -> Prompt:
    """Text as it is, behind the token that begins a text where the model has one."""
    return Prompt(tuple(tokenizer.encode(text, add_special=True)))


def chat_prompt(
    tokenizer: "Tokenizer",
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,  # noqa: ANN401 - whatever a template knows
) -> Prompt:
    """Messages through the model's template, up to where its reply begins.

    options: what the template knows besides, e.g. `enable_thinking`. Raises UnsupportedModel for
    a model without a template, TemplateError where it refuses.
    """

    def rendered(messages: Sequence[Message]) -> tuple[int, ...]:
        text = _template(tokenizer).render(messages, tools=tools, **options)
        return tuple(tokenizer.encode(text, add_special=True))

    tokens = rendered(messages)
    if messages[0]["role"] != "system" or len(messages) == 1:
        return Prompt(tokens)
    # What does not change with the user's words is the system message, whatever the template.
    other = "~" if not messages[1]["content"].startswith("~") else "-"
    changed = rendered([messages[0], {"role": "user", "content": other}])
    pairs = zip(tokens, changed, strict=False)
    return Prompt(tokens, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))


def joined(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages with neighbours of the same role made one, as templates want: a question that was
    never answered stands with the next. Calls of tools and their results stay apart."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        plain = message["role"] != "tool" and "tool_calls" not in message
        before = turns[-1] if turns else {}
        if plain and before.get("role") == message["role"] and "tool_calls" not in before:
            before["content"] += "\n\n" + message["content"]
        else:
            turns.append(dict(message))
    return turns


def _template(tokenizer: "Tokenizer") -> "ChatTemplate":
    if tokenizer.chat_template is None:
        raise UnsupportedModel(
            "this model has no chat template: it completes text, so use --raw, or an instruct model"
        )
    return tokenizer.chat_template
