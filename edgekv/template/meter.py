"""What a template may make and take: sizes, steps, time, and what is refused beforehand."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
from jinja2.runtime import Undefined

MAX_VALUE = 8 << 20
MAX_OUTPUT = 16 << 20
MAX_STEPS = 4_000_000
MAX_INT_BITS = 1024
MAX_DEPTH = 64
MAX_STRIP = 64
MAX_SECONDS = 10.0
ITEM_SIZE = 16


class Stopped(jinja2.TemplateError):
    """A limit was passed, or the template called `raise_exception`."""


class Meter:
    """What one rendering has used so far; owned by that rendering."""

    def __init__(self) -> None:
        self.steps = 0
        self.written = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self, written: int = 0) -> None:
        self.steps += 1
        self.written += written
        if self.steps > MAX_STEPS:
            raise Stopped(f"it takes more than {MAX_STEPS} steps")
        if self.written > MAX_OUTPUT:
            raise Stopped(f"it writes more than {MAX_OUTPUT} characters")
        if time.monotonic() > self.deadline:
            raise Stopped(f"it runs for more than {MAX_SECONDS:g} seconds")


def measure(value: object, most: int = MAX_VALUE, depth: int = 0) -> int:
    """The size of a value written out as a tree, in characters and items; more than `most` if it
    is larger, nested deeper than MAX_DEPTH, or holds what is not data."""
    if isinstance(value, str):
        return len(value) + ITEM_SIZE
    if isinstance(value, int):
        return ITEM_SIZE if value.bit_length() <= MAX_INT_BITS else most + 1
    if isinstance(value, range):
        return ITEM_SIZE * (1 + len(value))
    if isinstance(value, Message):
        return value.size
    if not isinstance(value, (list, tuple, Mapping)):
        plain = value is None or isinstance(value, (float, Undefined))
        return ITEM_SIZE if plain else most + 1
    total = ITEM_SIZE if depth <= MAX_DEPTH else most + 1
    children: Iterable[object] = value
    if isinstance(value, Mapping):
        children = (child for pair in value.items() for child in pair)
    for child in children:
        if total > most:
            break
        total += measure(child, most - total, depth + 1)
    return total


class Message(dict[str, Any]):
    """A message, measured once: templates add it to one list after another."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.size = measure(dict(message))


def limit(size: int) -> None:
    if size > MAX_VALUE:
        raise Stopped(f"it makes a value that is not data or is larger than {MAX_VALUE} characters")


def bounded(value: object) -> object:
    """The value itself; loops, macros and namespaces, which are not data, pass."""
    if isinstance(value, (str, int, list, tuple, Mapping)):
        limit(measure(value))
    return value


def _check_replace(text: object, old: object, new: object, *_: object) -> None:
    limit(len(str(text)) + str(text).count(str(old)) * len(str(new)))


def _check_join(separator: object, items: object) -> None:
    size = measure(items)
    limit(size + len(str(separator)) * (size // ITEM_SIZE))


def _check_strip(text: object, chars: object = None) -> None:
    # Stripping compares each character with all of `chars`.
    if chars is not None and len(str(chars)) > MAX_STRIP:
        raise Stopped(f"it strips more than {MAX_STRIP} different characters")


def _check_multiply(left: object, right: object) -> None:
    for count, other in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(other, (str, list, tuple)):
            limit(max(count, 0) * measure(other))
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * abs(exponent))


def _check_bits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise Stopped(f"it makes a number of more than {MAX_INT_BITS} bits")


def _check_modulo(left: object, right: object) -> None:
    if isinstance(left, str):
        raise Stopped("it formats text with %, which is not supported")


# What is refused before it is done, because the result may be far larger than what goes in.
OPERATOR_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "*": _check_multiply,
    "**": _check_power,
    "%": _check_modulo,
    "+": lambda left, right: None,
}
METHOD_CHECKS: dict[str, Callable[..., None]] = {
    "replace": _check_replace,
    "join": _check_join,
    "strip": _check_strip,
    "lstrip": _check_strip,
    "rstrip": _check_strip,
}
FILTER_CHECKS: dict[str, Callable[..., None]] = {
    "replace": lambda _context, s, old, new, count=None: _check_replace(s, old, new),
    "join": lambda _context, items, d="", attribute=None: _check_join(d, items),
    "trim": _check_strip,
    "string": lambda value: limit(measure(value)),
}
