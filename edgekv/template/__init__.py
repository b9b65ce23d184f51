"""Chat templates: a stranger's Jinja program, run so that it can do no harm.

The sandbox of jinja2 keeps a program from Python's internals, not from filling the memory or
running for ever. So here every value that is made is measured, every call and loop turn and
character written is counted by a `Meter` with a deadline, and only those filters and methods are
there whose work is bounded by what they are given.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import jinja2

from edgekv.errors import TemplateError
from edgekv.template.meter import MAX_VALUE, Message, Meter, Stopped, measure
from edgekv.template.sandbox import Sandbox

MAX_TEMPLATE = 256 << 10


def _one_line(fault: Exception) -> str:
    text = " ".join(str(fault).split()) or type(fault).__name__
    where = f" (line {fault.lineno})" if isinstance(fault, jinja2.TemplateSyntaxError) else ""
    return f"{text[:300]}{where}"


class ChatTemplate:
    """A template and the tokens it may write; compiled when first rendered. Thread-safe."""

    def __init__(self, source: str, bos_token: str | None, eos_token: str | None) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._lock = Lock()
        self._compiled: tuple[Sandbox, jinja2.Template] | None = None

    def _compile(self) -> tuple[Sandbox, jinja2.Template]:
        if self._compiled is None:
            if len(self.source) > MAX_TEMPLATE:
                raise Stopped(f"it is longer than {MAX_TEMPLATE} characters")
            sandbox = Sandbox()
            self._compiled = sandbox, sandbox.from_string(self.source)
        return self._compiled

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt for `messages`, each with `role` and `content`.

        kwargs: what the template knows besides, e.g. `enable_thinking`. Raises TemplateError, in
        one line, for whatever the template refuses, gets wrong or does too much of.
        """
        values: dict[str, object] = {
            **self._tokens,
            **kwargs,
            "messages": [Message(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with self._lock:
                sandbox, template = self._compile()
                sandbox.meter = Meter()
                if measure(values) > MAX_VALUE:
                    raise Stopped(f"the messages are larger than {MAX_VALUE} characters")
                return template.render(values)
        except Exception as fault:
            raise TemplateError(f"the chat template cannot be used: {_one_line(fault)}") from fault
