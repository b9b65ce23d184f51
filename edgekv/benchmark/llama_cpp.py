"""llama.cpp on the same GGUF file, through the xllamacpp package, by its own clock."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekv.benchmark.contest import Row, Task
from edgekv.benchmark.contestant import process_peak, prompts, words
from edgekv.errors import InvalidValue
from edgekv.loading.gguf import read_gguf
from edgekv.loading.gguf_names import config_from_gguf
from edgekv.tokenizer import load_tokenizer_gguf


def measure(setting: Mapping[str, Any], task: Task) -> list[Row]:
    import xllamacpp

    if not task.model.endswith(".gguf"):
        raise InvalidValue(f"{task.model}: llama.cpp reads GGUF files alone")
    params = xllamacpp.CommonParams()
    params.model.path = task.model
    params.n_ctx = max(task.contexts) + task.answer + 64
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{setting['kv_type']}")
    params.cache_type_k = params.cache_type_v = kind
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.verbosity = 0
    server = xllamacpp.Server(params)
    gguf = read_gguf(Path(task.model))
    tokenizer = load_tokenizer_gguf(gguf.metadata, config_from_gguf(gguf))
    given = prompts(tokenizer.encode(words()), task.contexts)
    _answer(server, given[0][:70], 3)
    return [_row(server, tokens, task.answer) for tokens in given]


def _answer(server: Any, tokens: list[int], n: int) -> dict[str, float]:  # noqa: ANN401
    request = {"prompt": tokens, "n_predict": n, "temperature": 0, "ignore_eos": True}
    reply = server.handle_completions(request | {"cache_prompt": False, "stream": False})
    timings: dict[str, float] = reply["timings"]
    return timings


def _row(server: Any, tokens: list[int], answer: int) -> Row:  # noqa: ANN401
    timings = _answer(server, tokens, answer + 1)
    return {
        "context": len(tokens),
        "prefill_tps": timings["prompt_per_second"],
        "decode_tps": timings["predicted_per_second"],
        "kv_bytes": None,
        "peak_bytes": None,
        "process_peak_bytes": process_peak(),
    }
