"""Conversations as clients send them, made into what chat templates take.

A template's message is `{"role", "content"}` with text, and for tools `tool_calls` (arguments as
an object, as Hugging Face's templates expect) or `tool_call_id`.
"""

import json
from collections.abc import Sequence
from typing import Any

from edgekv.conversation import MAX_PROMPT, joined
from edgekv.server.errors import invalid
from edgekv.server.fields import Fields

MAX_MESSAGES = 2048
ROLES = ("system", "developer", "user", "assistant", "tool")

Message = dict[str, Any]


def read_messages(fields: Fields) -> list[Message]:
    """The `messages` of a chat. Raises ApiError."""
    given = fields.nested_list("messages")
    if not given:
        raise fields.wrong("messages", "a list with a message in it")
    check_count(given, "messages")
    messages = [_message(one) for one in given]
    check_length(messages)
    return messages


def check_count(items: Sequence[object], name: str) -> None:
    if len(items) > MAX_MESSAGES:
        raise invalid(f"{name}: at most {MAX_MESSAGES} are taken, got {len(items)}", name)


def check_length(messages: Sequence[Message]) -> None:
    """Raises ApiError (context_length_exceeded) for more text than a prompt may have."""
    size = sum(len(one["content"]) for one in messages)
    if size > MAX_PROMPT:
        raise invalid(
            f"the messages hold {size:,} characters, over the limit of {MAX_PROMPT:,}",
            "messages",
            "context_length_exceeded",
        )


def _message(fields: Fields) -> Message:
    role = fields.choice("role", ROLES)
    if role is None:
        raise fields.required("role")
    message: Message = {"role": "system" if role == "developer" else role}
    calls = fields.nested_list("tool_calls") or []
    if calls and role != "assistant":
        raise invalid(f"{fields.name('tool_calls')} belongs to an assistant", fields.name("role"))
    fields.refuse("audio", "function_call")
    message["content"] = read_content(fields, optional=role == "assistant")
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    if name := fields.text("name"):
        message["name"] = name
    if role == "tool" and (call_id := fields.text("tool_call_id")):
        message["tool_call_id"] = call_id
    thought = fields.text("reasoning_content")
    if thought and role == "assistant":
        message["reasoning_content"] = thought
    fields.accept("refusal", "annotations", "tool_call_id")
    return message


def read_content(fields: Fields, optional: bool = False, key: str = "content") -> str:
    """Text, or the joined text of parts. Raises ApiError (unsupported_content for an image)."""
    value = fields.take(key)
    if value is None and optional:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong(key, "a string or a list of parts")
    return "".join(_part(part) for part in fields.nested_list(key) or [])


_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def _part(part: Fields) -> str:
    kind = part.text("type")
    if kind is None:
        raise part.required("type")
    if kind not in _TEXT_PARTS:
        raise invalid(
            f"{part.name('type')}: this model reads text alone, got {kind[:64]!r}",
            part.name("type"),
            "unsupported_content",
        )
    text = part.text("refusal" if kind == "refusal" else "text")
    if text is None:
        raise part.required("text")
    return text


def _tool_call(call: Fields) -> dict[str, Any]:
    call.choice("type", ("function",))
    function = call.nested("function")
    if function is None:
        raise call.required("function")
    name = function.text("name")
    if not name:
        raise function.required("name")
    text = function.text("arguments")
    where = function.name("arguments")
    return made_call(call.text("id") or "", name, parse_arguments(text or "{}", where))


def parse_arguments(text: str, where: str) -> dict[str, Any]:
    """The arguments of a call that the model is said to have made. Raises ApiError."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(f"{where}: expected a JSON object as a string", where) from None
    if not isinstance(arguments, dict):
        raise invalid(f"{where}: expected a JSON object as a string", where)
    return arguments


def made_call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call of a tool, as templates take it."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def folded(messages: Sequence[Message]) -> list[Message]:
    """For templates that know neither a system message nor two of a role in a row.

    System text goes before the first user message's, and neighbours of one role are joined.
    """
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    rest = [dict(m) for m in messages if m["role"] != "system"]
    if system:
        if not rest or rest[0]["role"] != "user":
            rest.insert(0, {"role": "user", "content": ""})
        rest[0]["content"] = f"{system}\n\n{rest[0]['content']}".rstrip("\n")
    return joined(rest)
