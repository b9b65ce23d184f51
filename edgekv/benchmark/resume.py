"""The first token of a stored session whose KV is on disk, against one that is read anew."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgekv.benchmark.contest import Row
from edgekv.cache.policy import CachePolicy
from edgekv.engine import Engine, Finished, Request
from edgekv.sampling import Sampling
from edgekv.sessions import Store


def resume(path: Path, policy: CachePolicy, tokens: Sequence[int]) -> Row:
    """Seconds from the request to the first token, each time by a new engine with the model loaded.

    The first engine writes the session's KV to disk, the second finds it there.
    """
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        session = store.create("bench").id
        request = Request(tuple(tokens), policy, Sampling(temp=0), 1, session=session)
        cold, resumed = (_answer(path, store, request) for _ in range(2))
    return {
        "context": len(tokens),
        "cold_s": cold.ttft_s,
        "resumed_s": resumed.ttft_s,
        "cached_tokens": resumed.cached_tokens,
    }


def _answer(path: Path, store: Store, request: Request) -> Finished:
    with Engine(path, store) as engine:
        *_, last = engine.submit(request)
    assert isinstance(last, Finished)
    return last
