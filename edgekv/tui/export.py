"""A conversation as a file that people or programs read, and back."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgekv.errors import DamagedFile, InvalidValue
from edgekv.sessions import Message
from edgekv.tui.printable import typed
from edgekv.tui.private import refusal

FORMAT = 1
LARGEST = 64 << 20
ROLES = {"user": "You", "assistant": "Reply", "system": "System"}
RULE = "<!-- edgekv: {} -->"


@dataclass(frozen=True)
class Facts:
    """What stands at the head of an export."""

    title: str
    model: str
    system: str | None
    kv: str | None
    tokens: int
    evicted_tokens: int | None


def write_export(path: Path, facts: Facts, messages: Sequence[Message]) -> None:
    """Markdown with front matter, or JSON for a name that ends in .json. Raises EdgekvError."""
    text = _json(facts, messages) if path.suffix.lower() == ".json" else _markdown(facts, messages)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise refusal(path, error) from None


def _json(facts: Facts, messages: Sequence[Message]) -> str:
    said = [
        {"role": each.role, "content": each.content, "finish_reason": each.finish_reason}
        for each in messages
    ]
    whole = {"edgekv_export": FORMAT, **asdict(facts), "messages": said}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _markdown(facts: Facts, messages: Sequence[Message]) -> str:
    # JSON strings are YAML strings, whatever is in them.
    head = "\n".join(f"{name}: {json.dumps(value)}" for name, value in asdict(facts).items())
    parts = [f"---\nedgekv_export: {FORMAT}\n{head}\n---\n"]
    for each in messages:
        # The comment tells where a message begins, since its text may hold any heading.
        begin = RULE.format(json.dumps({"role": each.role, "length": len(each.content)}))
        parts.append(f"{begin}\n## {ROLES.get(each.role, each.role)}\n\n{each.content}\n")
    return "\n".join(parts)


def read_export(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """(title, (role, text) of each message). Raises InvalidValue or DamagedFile."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InvalidValue(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > LARGEST:
        raise InvalidValue(f"{path} has more than {LARGEST >> 20} MiB: that is no conversation")
    try:
        text = data.decode("utf-8")
        read = _read_json(text) if text.lstrip().startswith("{") else _read_markdown(text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path} is not a conversation that edgekv exported: {error}") from None
    return read


def _read_json(text: str) -> tuple[str, list[tuple[str, str]]]:
    whole = json.loads(text)
    if whole["edgekv_export"] != FORMAT:
        raise ValueError(f"its format is {whole['edgekv_export']!r}, known is {FORMAT}")
    return str(whole["title"]), [_said(each["role"], each["content"]) for each in whole["messages"]]


def _read_markdown(text: str) -> tuple[str, list[tuple[str, str]]]:
    text = text.replace("\r\n", "\n")
    if not text.startswith("---\n"):
        raise ValueError("it has no front matter")
    head, _, rest = text[4:].partition("\n---\n")
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    if facts.get("edgekv_export") != str(FORMAT):
        raise ValueError(f"its format is {facts.get('edgekv_export')!r}, known is {FORMAT}")
    messages, (before, after) = [], RULE.split("{}")
    while (at := rest.find(before)) >= 0:
        line, _, rest = rest[at:].partition("\n")
        begin = json.loads(line.removeprefix(before).removesuffix(after))
        _, _, rest = rest.partition("\n\n")
        length = int(begin["length"])
        messages.append(_said(begin["role"], rest[:length]))
        rest = rest[length:]
    return str(json.loads(facts["title"])), messages


def _said(role: object, text: object) -> tuple[str, str]:
    if role not in ROLES or not isinstance(text, str):
        raise ValueError(f"it has a message of {role!r}")
    return str(role), typed(text)
