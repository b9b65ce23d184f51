"""What an answer took, as the APIs count it."""

from typing import Any

from edgekv.server.generation import End, Work


def usage(end: End) -> dict[str, Any]:
    """prompt_tokens: what was sent, whatever has rolled out of the window since."""
    finished = end.finished
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
    }


def extension(work: Work, end: End) -> dict[str, Any]:
    """The object `edgekv` of an answer: what became of the cache, and how it ended."""
    policy, finished = work.request.policy, end.finished
    return {
        "session_id": work.request.session,
        "evicted_tokens": finished.evicted_tokens,
        "window": policy.window,
        "sinks": policy.n_sink,
        "pinned": policy.n_pinned,
        "kv_bits": min(max(layer.k_bits, layer.v_bits) for layer in policy.layers),
        "kv_bytes": finished.kv_bytes,
        "stop_detail": end.detail,
        "ttft_ms": round(finished.ttft_s * 1000),
        "prefill_tps": round(finished.prefill_tps, 1),
        "decode_tps": round(finished.decode_tps, 1),
    }
