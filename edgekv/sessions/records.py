"""What the store gives back, and how it can fail."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgekv.errors import EdgekvError, InvalidValue

MAX_NAME = 200


class SessionNotFound(InvalidValue):
    """No stored session has that name or id."""


class SessionInUse(EdgekvError):
    """Another process has the session open."""


class StoreUnavailable(EdgekvError):
    """The store cannot be read or written: disk full, read-only, no permission, too new."""


@dataclass(frozen=True)
class Session:
    """One stored conversation.

    id: 32 hexadecimal digits, the same wherever the session is imported.
    settings: whatever a client wants back (policy, sampling, system message), JSON values.
    created, updated: seconds since 1970, to show; order is by `used`, which no clock can turn.
    parent: the id of the session this one was branched from.
    """

    id: str
    name: str
    model: str
    settings: Mapping[str, Any]
    created: float
    updated: float
    used: int
    pinned: bool = False
    draft: str = ""
    parent: str | None = None
    deleted: bool = False
    n_messages: int = 0


@dataclass(frozen=True)
class Message:
    """One turn's message. Positions count from 0 without gaps.

    tokens: the ids of the content as the model read or wrote them; empty where not recorded.
    finish_reason: stop, length or cancelled for a reply that ended, else None.
    partial: the reply was cut while it was written, and this is what had been saved of it.
    """

    position: int
    role: str
    content: str
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    partial: bool = False
    created: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Hit:
    """A message that contains what was searched for, with some text around it."""

    session: Session
    position: int
    role: str
    excerpt: str


def check_name(name: str) -> None:
    """Raise InvalidValue for what no session can be called."""
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        raise InvalidValue(
            f"a session's name must be 1 to {MAX_NAME} printable characters, got {name!r}"
        )
