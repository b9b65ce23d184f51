"""The fields of a request: each taken by its type and range, or refused by its name.

null is the same as absent, for SDKs send it. A field nobody knows is ignored, and named in the
log once; one that is known is honoured or refused.
"""

import json
import logging
import math
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn, TypeVar

from edgekv.server.errors import ApiError, invalid

log = logging.getLogger("edgekv.server")

MAX_DEPTH = 64
T = TypeVar("T")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_named: set[str] = set()


def parse_json(body: bytes) -> "Fields":
    """A request's body as its fields. Raises ApiError (invalid_json)."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise _not_json("a string holds half a surrogate pair") from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except ValueError as error:
        raise _not_json(str(error)) from None
    if not isinstance(value, dict):
        raise _not_json(f"it must be an object, got {_kind(value)}")
    if _depth(value) > MAX_DEPTH:
        raise _not_json(f"it is nested deeper than {MAX_DEPTH}")
    return Fields(value)


def _not_json(why: str) -> ApiError:
    return invalid(f"the body cannot be read as JSON: {why}", code="invalid_json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:32]} is beyond the range of a number")
    return value


def _depth(value: object) -> int:
    """Levels of lists and objects, level by level so that depth costs no recursion."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        nested = [x for x in level if isinstance(x, list | dict)]
        level = [y for x in nested for y in (x.values() if isinstance(x, dict) else x)]
        depth += bool(nested)
    return depth


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a whole number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    return names[type(value)]


class Fields:
    """One object of a request. `where` is its own name, for messages: "messages[0]"."""

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self.values = values
        self._where = where
        self._known: set[str] = set()

    def name(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key

    def take(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The value as it came; None where absent or null."""
        self._known.add(key)
        return self.values.get(key)

    def wrong(self, key: str, expected: str) -> ApiError:
        """The fault of a field: what it should be, and what was got."""
        value = self.values.get(key)
        got = "an empty list" if value == [] else _kind(value)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            got = repr(value)[:64]
        return invalid(f"{self.name(key)}: expected {expected}, got {got}", self.name(key))

    def integer(self, key: str, low: int, high: int) -> int | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, above: bool = False) -> float | None:
        """A number from low (or above it) to high."""
        value = self.take(key)
        if value is None:
            return None
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not low <= value <= high or (above and value == low):
            bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise self.wrong(key, f"a number {bound}")
        return float(value)

    def flag(self, key: str) -> bool | None:
        return self._typed(key, bool, "true or false")

    def text(self, key: str) -> str | None:
        return self._typed(key, str, "a string")

    def items(self, key: str) -> list[Any] | None:
        return self._typed(key, list, "a list")

    def _typed(self, key: str, kind: type[T], expected: str) -> T | None:
        value = self.take(key)
        if value is None or isinstance(value, kind):
            return value
        raise self.wrong(key, expected)

    def choice(self, key: str, options: Collection[str]) -> str | None:
        value = self.take(key)
        if value is not None and (not isinstance(value, str) or value not in options):
            raise self.wrong(key, "one of " + ", ".join(options))
        return value

    def nested(self, key: str) -> "Fields | None":
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Fields(value, self.name(key))

    def nested_list(self, key: str) -> "list[Fields] | None":
        """A list of objects."""
        values = self.items(key)
        if values is None:
            return None
        return [self._element(key, i, value) for i, value in enumerate(values)]

    def _element(self, key: str, i: int, value: object) -> "Fields":
        name = f"{self.name(key)}[{i}]"
        if not isinstance(value, dict):
            raise invalid(f"{name}: expected an object, got {_kind(value)}", name)
        return Fields(value, name)

    def required(self, key: str) -> ApiError:
        """The fault of a field that is missing."""
        return invalid(f"{self.name(key)} is required", self.name(key))

    def accept(self, *keys: str) -> None:
        """Fields that change nothing here, whatever they say."""
        self._known.update(keys)

    def refuse(self, *keys: str) -> None:
        """Fields that would change the answer and are not supported."""
        for key in keys:
            if self.take(key) is not None:
                name = self.name(key)
                raise invalid(f"{name} is not supported by this server", name, "unsupported")

    def refuse_unless_off(self, *keys: str) -> None:
        """The same for fields that may be there and ask for nothing: 0, false, or empty."""
        self.refuse(*(key for key in keys if self.take(key)))

    def refuse_unknown(self) -> None:
        """For an object of this server's own, where an unknown name is a mistake."""
        for key in self.values.keys() - self._known:
            raise invalid(f"{self.name(key)[:100]} is not known", self.name(key)[:100])

    def log_unknown(self) -> None:
        """Name the fields that nobody asked for, each once."""
        for key in self._unknown():
            if len(_named) < 1000:
                _named.add(key)
                log.info("ignored an unknown field %r", key[:64])

    def _unknown(self) -> Iterator[str]:
        return (self.name(k) for k in self.values if k not in self._known and k not in _named)
