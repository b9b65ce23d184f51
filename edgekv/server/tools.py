"""Tools: how a request names them, how a model's template wants them, how its calls are written."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgekv.grammar import Grammar
from edgekv.server.errors import invalid, unsupported
from edgekv.server.fields import Fields
from edgekv.tokenizer import Tokenizer

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class Syntax:
    """How a family writes a call: JSON between two marks, `arguments` under a name of its own.

    opens "" means that a reply which begins with "{" is a call.
    """

    opens: str
    closes: str
    arguments: str


HERMES = Syntax("<tool_call>", "</tool_call>", "arguments")
"""Hermes, Qwen2.5, Qwen3 and most fine-tunes."""

LLAMA = Syntax("", "", "parameters")
"""Llama 3.1 and 3.2."""


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: dict[str, Any]
    description: str | None = None

    def for_template(self) -> dict[str, Any]:
        """In OpenAI's form, which templates are written for."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.parameters}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request. forced: names of which one must be called, or none.

    parallel: whether one reply may call more than once.
    """

    tools: tuple[Tool, ...]
    syntax: Syntax
    forced: tuple[str, ...] = ()
    parallel: bool = True

    def grammar(self) -> Grammar | None:
        """What a reply must look like where a call is forced."""
        if not self.forced:
            return None
        calls = [self._call(tool) for tool in self.tools if tool.name in self.forced]
        lines = [f"call{i}: %json {json.dumps(call)}" for i, call in enumerate(calls)]
        choice = " | ".join(f"call{i}" for i in range(len(calls)))
        opens, closes = (json.dumps(mark) for mark in (self.syntax.opens, self.syntax.closes))
        marked = f'start: {opens} "\\n" call "\\n" {closes}'
        start = marked if self.syntax.opens else "start: call"
        return Grammar("\n".join([start, f"call: {choice}", *lines]))

    def _call(self, tool: Tool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"name": {"const": tool.name}, self.syntax.arguments: tool.parameters},
            "required": ["name", self.syntax.arguments],
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class ToolCall:
    """A call that a model made; arguments is a JSON object as text."""

    id: str
    name: str
    arguments: str


def syntax_of(tokenizer: Tokenizer) -> Syntax:
    """How this model writes calls. Raises ApiError (unsupported)."""
    source = tokenizer.chat_template.source if tokenizer.chat_template else ""
    if "tools" in source:
        if HERMES.opens in source:
            return HERMES
        if '"parameters"' in source or "python_tag" in source:
            return LLAMA
    raise unsupported("this model's template has no tools that this server can read", "tools")


def read_tools(fields: Fields, tokenizer: Tokenizer) -> ToolUse | None:
    """`tools`, `tool_choice` and `parallel_tool_calls` of a chat."""
    fields.refuse("functions", "function_call")
    tools = tuple(_tool(one) for one in fields.nested_list("tools") or [])
    choice = fields.take("tool_choice")
    parallel = fields.flag("parallel_tool_calls")
    if isinstance(choice, dict):
        wanted = fields.nested("tool_choice")
        assert wanted is not None
        wanted.choice("type", ("function",))
        function = wanted.nested("function") or wanted
        choice = function.text("name")
        if choice is None:
            raise function.required("name")
        mode = "named"
    else:
        mode = fields.choice("tool_choice", ("auto", "none", "required")) or "auto"
    name = choice if mode == "named" else None
    return use_tools(tools, mode, name, parallel is not False, tokenizer)


def use_tools(
    tools: Sequence[Tool], mode: str, name: str | None, parallel: bool, tokenizer: Tokenizer
) -> ToolUse | None:
    """mode: auto, none, required, or named with a name. Raises ApiError."""
    if len(tools) > MAX_TOOLS:
        raise invalid(f"tools: at most {MAX_TOOLS} are taken, got {len(tools)}", "tools")
    names = tuple(tool.name for tool in tools)
    if len(set(names)) < len(names):
        raise invalid("tools: two have the same name", "tools")
    if mode in ("required", "named") and not tools:
        raise invalid("tool_choice: there are no tools to choose from", "tool_choice")
    if mode == "named" and name not in names:
        raise invalid(f"tool_choice: no tool is named {str(name)[:64]!r}", "tool_choice")
    if not tools or mode == "none":
        return None
    forced = {"required": names, "named": (str(name),)}.get(mode, ())
    return ToolUse(tuple(tools), syntax_of(tokenizer), forced, parallel)


def _tool(fields: Fields) -> Tool:
    kind = fields.text("type")
    if kind != "function":
        raise fields.wrong("type", '"function"')
    # OpenAI's responses have the function's fields beside `type`.
    function = fields.nested("function") or fields
    return read_tool(function, "parameters")


def read_tool(fields: Fields, schema: str) -> Tool:
    """A tool whose schema stands under that key."""
    name = fields.text("name")
    if name is None or not _NAME.fullmatch(name):
        raise fields.wrong("name", "a name of 1 to 64 letters, digits, _ . : or -")
    parameters = fields.nested(schema)
    given = {"type": "object", "properties": {}} if parameters is None else parameters.values
    fields.accept("strict")
    return Tool(name, given, fields.text("description"))


def parse_call(text: str, syntax: Syntax, names: Sequence[str]) -> ToolCall | None:
    """The call that a piece of a reply is, or None where it is none of a known tool."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or call.get("name") not in names:
        return None
    arguments = call.get(syntax.arguments, call.get("arguments", {}))
    if not isinstance(arguments, dict):
        return None
    return ToolCall(f"call_{secrets.token_hex(12)}", call["name"], json.dumps(arguments))
