"""A walk kept on disk while it is under way: caches, place in the text, numbers so far."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import EdgekvError
from edgekv.evaluation.walk import Walk

VERSION = 1


def key(kind: str, model: Path, tokens: Sequence[int], policies: Sequence[CachePolicy]) -> str:
    """A name for one measurement: of what kind, on which files, which text, which policies."""
    files = sorted(model.rglob("*")) if model.is_dir() else [model]
    facts = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    text = np.array(tokens, dtype=np.uint32).tobytes()
    what = repr((VERSION, kind, facts, len(tokens), policies)).encode() + text
    return hashlib.sha256(what).hexdigest()[:32]


class Checkpoint:
    """One walk's file, `<folder>/<key>.safetensors`."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / f"{key}.safetensors"

    def save(self, walk: Walk) -> None:
        """Replace the file, whole or not at all. Raises EdgekvError where it cannot be written."""
        arrays = {"numbers": mx.array(walk.so_far())}
        for i, cache in enumerate(walk.caches):
            arrays |= {f"{i}.{name}": array for name, array in _arrays(cache).items()}
        places = [[c.length, c.closed, len(c.pinned), len(c.ring)] for c in walk.caches]
        facts = {"walk": json.dumps({"done": walk.done, "caches": places})}
        temporary = self._path.with_name(f"{self._path.stem}.{os.getpid()}.tmp.safetensors")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            mx.save_safetensors(str(temporary), arrays, facts)
            temporary.replace(self._path)
        except (OSError, RuntimeError) as error:
            raise EdgekvError(f"cannot keep the measurement in {self._path}: {error}") from None
        finally:
            temporary.unlink(missing_ok=True)

    def load(self, policies: Sequence[CachePolicy], rope: Rope) -> Walk:
        """The walk as it was kept, or a new one where there is none that can be read."""
        caches = [SequenceCache(policy, rope) for policy in policies]
        if not self._path.exists():
            return Walk(caches)
        try:
            return self._read(caches)
        except (RuntimeError, ValueError, KeyError, TypeError):
            self.forget()
            return Walk([SequenceCache(policy, rope) for policy in policies])

    def _read(self, caches: list[SequenceCache]) -> Walk:
        arrays, facts = _load(self._path)
        walk = json.loads(facts["walk"])
        for i, (cache, place) in enumerate(zip(caches, walk["caches"], strict=True)):
            prefix = f"{i}."
            own = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
            _restore(cache, own, *map(int, place))
        mx.eval(*arrays.values())
        return Walk(caches, int(walk["done"]), [np.array(arrays["numbers"])])

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    loaded: Any = mx.load(str(path), return_metadata=True)
    return loaded[0], loaded[1]


def _arrays(cache: SequenceCache) -> dict[str, mx.array]:
    """The fp16 part of each layer, and its closed blocks: pinned ones, then the ring."""
    found = {f"{i}.hot": layer.hot for i, layer in enumerate(cache.layers)}
    slots = [*cache.pinned, *cache.ring]
    for i in range(len(cache.layers) if slots else 0):
        for part, matrix in zip("kv", cache.pool.read(i, slots), strict=True):
            found |= {f"{i}.{part}{j}": array for j, array in enumerate(matrix)}
    return found


def _restore(
    cache: SequenceCache,
    arrays: dict[str, mx.array],
    length: int,
    closed: int,
    n_pinned: int,
    n_ring: int,
) -> None:
    slots = [cache.pool.allocate() for _ in range(n_pinned + n_ring)]
    for i, layer in enumerate(cache.layers):
        layer.hot = _shaped(arrays[f"{i}.hot"], layer.hot)
        if slots:
            room = cache.pool.read(i, slots)
            parts = [
                tuple(_shaped(arrays[f"{i}.{part}{j}"], old) for j, old in enumerate(matrix))
                for part, matrix in zip("kv", room, strict=True)
            ]
            cache.pool.write(i, slots, type(room)(*parts))
    cache.length, cache.closed = length, closed
    cache.pinned += slots[:n_pinned]
    cache.ring.extend(slots[n_pinned:])


def _shaped(array: mx.array, like: mx.array) -> mx.array:
    if (array.shape, array.dtype) != (like.shape, like.dtype):
        raise ValueError(f"{array.shape} where {like.shape} was expected")
    return array
