"""Where edgekv keeps things, and the settings a user can leave in config.toml.

Precedence of a setting: command-line flag > EDGEKV_* variable > config.toml > default.
"""

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgekv.errors import EdgekvError, InvalidValue
from edgekv.files import private_folder, write_whole

DEFAULT_MODEL = "smollm2-135m"
KV_BITS = (2, 3, 4, 8, 16)

Value = str | int | float


@dataclass(frozen=True)
class Paths:
    """Every place edgekv reads or writes; none of them need exist."""

    config: Path
    catalog: Path
    data: Path
    models: Path


@dataclass(frozen=True)
class Config:
    """Settings after precedence; None means "the model decides" (seed: a fresh one each time)."""

    model: str = DEFAULT_MODEL
    window: int | None = None
    n_sink: int = 4
    k_bits: int = 4
    v_bits: int = 4
    kv_policy: str | None = None
    max_tokens: int = 1024
    temp: float = 0.0
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    system: str | None = None


@dataclass(frozen=True)
class Rule:
    """What one key accepts; `above` excludes `low` itself."""

    kind: type[str] | type[int] | type[float]
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    choices: tuple[int, ...] = ()


RULES: dict[str, Rule] = {
    "model": Rule(str),
    "window": Rule(int, low=1),
    "n_sink": Rule(int, low=0),
    "kv_bits": Rule(int, choices=KV_BITS),
    "k_bits": Rule(int, choices=KV_BITS),
    "v_bits": Rule(int, choices=KV_BITS),
    "kv_policy": Rule(str),
    "max_tokens": Rule(int, low=1),
    "temp": Rule(float, low=0),
    "top_p": Rule(float, low=0, high=1, above=True),
    "top_k": Rule(int, low=0),
    "min_p": Rule(float, low=0, high=1),
    "repetition_penalty": Rule(float, low=0, above=True),
    "seed": Rule(int, low=0, high=2**64 - 1),
    "system": Rule(str),
}

MODEL_LINE = re.compile(
    r"""^(?P<key>[ \t]*(?:model|"model"|'model')[ \t]*=[ \t]*)("(?:[^"\\\n]|\\.)*"|'[^'\n]*')""",
    re.MULTILINE,
)

NAMES = {str: "text", int: "a whole number", float: "a number"}


def paths() -> Paths:
    """The paths in force now, after EDGEKV_HOME and XDG_CONFIG_HOME."""
    home = os.environ.get("EDGEKV_HOME")
    config = Path(home).expanduser().absolute() if home else _config_folder()
    data = config / "data" if home else _data_folder()
    return Paths(config / "config.toml", config / "models.toml", data, data / "models")


def _config_folder() -> Path:
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(xdg) if xdg.startswith("/") else Path.home() / ".config") / "edgekv"


def _data_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("edgekv", appauthor=False)


def check(key: str, value: object, origin: str) -> Value:
    """Return `value` as the type `key` has.

    `origin` names the place it came from ("--top-p", "EDGEKV_TOP_P", "config.toml: top_p").
    Raises InvalidValue for a wrong type or a value out of range.
    """
    rule = RULES[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if rule.kind is float and number:
        value = float(value)  # type: ignore[arg-type]
    if not isinstance(value, rule.kind) or isinstance(value, bool):
        raise InvalidValue(f"{origin}: expected {NAMES[rule.kind]}, got {value!r}")
    if isinstance(value, str):
        if key == "model" and not value.strip():
            raise InvalidValue(f"{origin}: the model name is empty")
        return value
    if not _within(rule, value):
        raise InvalidValue(f"{origin}: expected {_range(rule)}, got {value!r}")
    return value


def _within(rule: Rule, value: int | float) -> bool:
    if rule.choices:
        return value in rule.choices
    if not math.isfinite(value) or (rule.above and value == rule.low):
        return False
    return rule.low <= value <= rule.high


def _range(rule: Rule) -> str:
    if rule.choices:
        return "one of " + ", ".join(map(str, rule.choices))
    lower = f"{'more than' if rule.above else 'at least'} {rule.low:g}"
    upper = "" if math.isinf(rule.high) else f" and at most {rule.high:,g}"
    return f"a finite number {lower}{upper}" if rule.kind is float else f"{lower}{upper}"


def from_text(key: str, text: str, origin: str) -> Value:
    """Read an environment variable's text as the type `key` has. Raises InvalidValue."""
    kind = RULES[key].kind
    try:
        value = kind(text)
    except ValueError:
        raise InvalidValue(f"{origin}: expected {NAMES[kind]}, got {text!r}") from None
    return check(key, value, origin)


def read_file(path: Path) -> dict[str, Value]:
    """The settings in a config.toml; a missing file is an empty one.

    Raises InvalidValue for broken TOML, an unknown key or a value of the wrong kind.
    """
    table = parse_toml(path)
    for key in table:
        if key not in RULES:
            raise InvalidValue(f"{path}: unknown key {key!r}{nearest(key, RULES)}")
    return {key: check(key, value, f"{path}: {key}") for key, value in table.items()}


def parse_toml(path: Path) -> dict[str, object]:
    """A TOML file as a table; empty when there is no such file. Raises InvalidValue."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValue(f"{path}: cannot be read as TOML: {error}") from None


def nearest(word: str, known: Mapping[str, object]) -> str:
    """ ": did you mean …?" with the closest known words, or the full list when none is close."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    listed = " or ".join(close) if close else ""
    return f": did you mean {listed}?" if listed else f"; known are {', '.join(known)}"


def read_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """The settings given as EDGEKV_<KEY> variables. Raises InvalidValue."""
    found = {key: f"EDGEKV_{key.upper()}" for key in RULES}
    return {
        key: from_text(key, environ[name], name) for key, name in found.items() if environ.get(name)
    }


def load(flags: Mapping[str, object] | None = None) -> Config:
    """Merge every layer into one Config.

    `flags` maps keys to values from the command line; None means "not given". Raises
    InvalidValue naming the flag, variable or file at fault.
    """
    given = {
        key: check(key, value, f"--{key.replace('_', '-')}")
        for key, value in (flags or {}).items()
        if value is not None
    }
    merged: dict[str, Value] = {}
    for layer in (read_file(paths().config), read_environment(os.environ), given):
        _one_kind_of_bits(layer, merged)
        merged |= _expand_bits(layer)
    return Config(**merged)  # type: ignore[arg-type]


def _one_kind_of_bits(layer: Mapping[str, Value], merged: dict[str, Value]) -> None:
    """Bits given for all layers beat a file of bits from a weaker place, and contradict their own.

    Raises InvalidValue.
    """
    named = [key for key in ("kv_bits", "k_bits", "v_bits") if key in layer]
    if named and "kv_policy" in layer:
        raise InvalidValue(f"kv_policy has the bits of each layer: give it or {named[0]}, not both")
    if named:
        merged.pop("kv_policy", None)


def _expand_bits(layer: Mapping[str, Value]) -> dict[str, Value]:
    # Inside one layer kv_bits is the weaker name, yet a --kv-bits flag beats a k_bits in the file.
    rest = dict(layer)
    both = rest.pop("kv_bits", None)
    return rest if both is None else {"k_bits": both, "v_bits": both} | rest


def set_model(name: str) -> Path:
    """Make `name` the default in config.toml, keeping every other line. Returns the file.

    Raises InvalidValue when the file cannot be edited safely, EdgekvError when it cannot be
    written.
    """
    if not name.isprintable():
        raise InvalidValue(
            f"model {name!r} has characters that config.toml cannot hold; rename it first"
        )
    # A linked config.toml (dotfiles) must stay a link.
    path = paths().config.resolve()
    before = read_file(path)
    text = path.read_bytes().decode("utf-8") if before or path.exists() else ""
    edited = _edit_model(text, before | {"model": name}, path)
    try:
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o600
        private_folder(path.parent)
        write_whole(path, edited.encode("utf-8"))
        path.chmod(mode)
    except OSError as error:
        raise EdgekvError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _edit_model(text: str, wanted: dict[str, Value], path: Path) -> str:
    for candidate in _candidates(text, str(wanted["model"])):
        if _parses_to(candidate, wanted):
            return candidate
    raise InvalidValue(f"{path}: cannot change `model` there; edit that line by hand")


def _candidates(text: str, name: str) -> list[str]:
    """`text` with each line that could be the setting replaced, and with a line added."""
    quoted = json.dumps(name, ensure_ascii=False)
    replaced = [
        text[: found.start()] + found["key"] + quoted + text[found.end() :]
        for found in MODEL_LINE.finditer(text)
    ]
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = newline if text and not text.endswith("\n") else ""
    return [*replaced, f"{text}{gap}model = {quoted}{newline}"]


def _parses_to(text: str, wanted: dict[str, Value]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
