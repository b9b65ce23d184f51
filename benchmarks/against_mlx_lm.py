"""Speed of edgekv and of mlx-lm on one model, with the same weights, in alternating rounds.

    python benchmarks/against_mlx_lm.py [MODEL] [--rounds 3] [--out results.json]

Each peer of each round is a process of its own. All read the weights through edgekv's loader, so
that they hold the same packed arrays; edgekv then runs on its own path (edgekv.models.load.build,
edgekv.generate), mlx-lm on its own (mlx_lm.models.llama, mlx_lm.generate.generate_step), in each
of the settings that it can run them in. On Linux mlx-lm is also measured with the BLAS that edgekv
installs, which its users do not have. Prefill is a prompt of 512 tokens; decode is the 64 tokens
behind it. Needs `pip install -e ".[test]"` and a quiet machine. MODEL is a Llama GGUF file or
folder; without it, the default model where `edgekv models pull` left it.
"""

import argparse
import contextlib
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx import nn

    from edgekv.loading import Checkpoint

PROMPT, SHORT, ANSWER = 512, 40, 64

RATES = {
    "prefill_tps": "prefill of 512",
    "decode_tps": "decode behind 40",
    "decode_512_tps": "decode behind 512",
}


@dataclass(frozen=True)
class Peer:
    """A library in one setting: how weights and the KV cache are held."""

    library: str
    weights: str = ""
    kv_bits: int = 16
    fast_blas: bool = False


PEERS = {
    "edgekv": Peer("edgekv", kv_bits=4, fast_blas=True),
    "edgekv, 16-bit KV": Peer("edgekv", fast_blas=True),
    "mlx-lm, 4-bit weights, fp32": Peer("mlx-lm", "packed-fp32"),
    "mlx-lm, 4-bit weights, fp32, 4-bit KV": Peer("mlx-lm", "packed-fp32", kv_bits=4),
    "mlx-lm, 4-bit weights, fp16": Peer("mlx-lm", "packed-fp16"),
    "mlx-lm, 4-bit weights, fp16, 4-bit KV": Peer("mlx-lm", "packed-fp16", kv_bits=4),
    "mlx-lm, dense fp32": Peer("mlx-lm", "dense-fp32"),
    "mlx-lm, dense fp32, 4-bit KV": Peer("mlx-lm", "dense-fp32", kv_bits=4),
    "mlx-lm, dense fp32, edgekv's BLAS": Peer("mlx-lm", "dense-fp32", fast_blas=True),
    "mlx-lm, dense fp32, 4-bit KV, edgekv's BLAS": Peer("mlx-lm", "dense-fp32", 4, True),
}
OURS = "edgekv"


def measure(peer: Peer, path: Path) -> dict[str, float]:
    """Tokens a second of one peer, in this process."""
    import mlx.core as mx

    from edgekv import blas
    from edgekv.loading import open_checkpoint

    if peer.fast_blas:
        blas.install()
    started = time.perf_counter()
    checkpoint = open_checkpoint(path)
    make = _edgekv if peer.library == "edgekv" else _mlx_lm
    stream = make(peer, checkpoint)
    loaded = time.perf_counter()
    # The first pass of a process builds what later ones find ready.
    for _ in stream([7] * 70, 3):
        pass
    text = checkpoint.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 90)[
        :PROMPT
    ]
    assert len(text) == PROMPT
    mx.synchronize()
    long, short = _times(stream, text), _times(stream, text[:SHORT])
    return {
        "load_s": loaded - started,
        "prefill_tps": PROMPT / (long[1] - long[0]),
        "decode_tps": ANSWER / (short[-1] - short[1]),
        "decode_512_tps": ANSWER / (long[-1] - long[1]),
        "peak_bytes": float(mx.get_peak_memory()),
    }


Stream = Callable[[list[int], int], Iterator[int]]


def _times(stream: Stream, tokens: list[int]) -> list[float]:
    """When the prompt was given, and when each token of the answer came."""
    times = [time.perf_counter()]
    times += [time.perf_counter() for _ in stream(tokens, ANSWER + 1)]
    assert len(times) == ANSWER + 2
    return times


def _edgekv(peer: Peer, checkpoint: "Checkpoint") -> Stream:
    from edgekv.cache.sequence import SequenceCache
    from edgekv.generate import decode, prefill
    from edgekv.models.load import build
    from edgekv.models.rope import make_rope
    from edgekv.models.shape import ModelShape
    from edgekv.sampling import Sampling, make_sampler

    shape = ModelShape.from_config(checkpoint.config)
    policy = shape.policy(k_bits=peer.kv_bits, v_bits=peer.kv_bits)
    rope = make_rope(checkpoint.config, shape.head_dim)
    model = build(checkpoint.config, checkpoint.weights)

    def stream(tokens: list[int], n: int) -> Iterator[int]:
        cache = SequenceCache(policy, rope)
        logits = prefill(model, cache, tokens)
        yield from decode(model, cache, logits, make_sampler(Sampling(temp=0), 0), None, n)

    return stream


def _mlx_lm(peer: Peer, checkpoint: "Checkpoint") -> Stream:
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.models import llama

    model = llama.Model(llama.ModelArgs.from_dict(checkpoint.config))
    weights = _arranged(peer, model, checkpoint)
    model.load_weights(list(weights.items()))
    mx.eval(model.parameters())
    options = {"kv_bits": peer.kv_bits, "quantized_kv_start": 0} if peer.kv_bits < 16 else {}

    def stream(tokens: list[int], n: int) -> Iterator[int]:
        for token, _ in generate_step(mx.array(tokens), model, max_tokens=n, **options):
            yield int(token)

    return stream


def _arranged(peer: Peer, model: "nn.Module", checkpoint: "Checkpoint") -> dict[str, Any]:
    """The checkpoint's weights in a setting, and the model's modules made to fit them."""
    import mlx.core as mx
    import mlx.nn as nn

    weights, settings = checkpoint.weights, checkpoint.config.get("quantization")
    kind = mx.float16 if peer.weights == "packed-fp16" else mx.float32
    if settings is None:
        return {name: array.astype(kind) for name, array in weights.items()}
    packed = {name.removesuffix(".scales") for name in weights if name.endswith(".scales")}
    modes = {module: settings.get(module, settings) for module in packed}
    modes = {m: {key: mode[key] for key in ("group_size", "bits")} for m, mode in modes.items()}
    if peer.weights != "dense-fp32":
        nn.quantize(model, class_predicate=lambda name, _: modes.get(name, False))
        return {k: v if v.dtype == mx.uint32 else v.astype(kind) for k, v in weights.items()}
    dense = {k: v.astype(kind) for k, v in weights.items() if k.rpartition(".")[0] not in packed}
    for module, mode in modes.items():
        parts = [weights[f"{module}.{part}"] for part in ("weight", "scales", "biases")]
        dense[f"{module}.weight"] = mx.dequantize(
            parts[0], *(part.astype(kind) for part in parts[1:]), **mode
        )
    return dense


def in_a_process(name: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, str(path), "--peer", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def median_of(samples: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def command_times(path: Path, rounds: int) -> dict[str, float]:
    """Seconds of `edgekv --help`, and from the start of `edgekv run` to its first character."""
    edgekv = shutil.which("edgekv", path=str(Path(sys.executable).parent))
    assert edgekv, "edgekv is not installed beside this Python"
    helps, firsts = [], []
    for _ in range(max(rounds, 3)):
        start = time.perf_counter()
        subprocess.run([edgekv, "--help"], stdout=subprocess.DEVNULL, check=True)
        helps.append(time.perf_counter() - start)
        command = [edgekv, "run", "-m", str(path), "--temp", "0", "--max-tokens", "8", "Say hello."]
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as running:
            assert running.stdout
            if not running.stdout.read(1):
                raise SystemExit("edgekv run printed nothing")
            firsts.append(time.perf_counter() - start)
            running.stdout.read()
    return {"help_s": statistics.median(helps), "first_token_s": statistics.median(firsts)}


def machine() -> dict[str, Any]:
    import os
    from importlib.metadata import version

    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in ("edgekv", "mlx", "mlx-lm")},
    }


def table(medians: dict[str, dict[str, float]]) -> str:
    """Markdown: each peer's medians in tokens a second, and how many times faster edgekv is."""
    heads = ["", *(f"{head}, tok/s | edgekv is" for head in RATES.values())]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * (1 + 2 * len(RATES))}"]
    ours = medians.get(OURS)
    for name, found in medians.items():
        cells = [
            f"{found[key]:.1f} | " + (f"{ours[key] / found[key]:.2f} ×" if ours else "")
            for key in RATES
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def default_model() -> Path:
    from edgekv import catalog, config, download

    return Path(
        download.locate(catalog.resolve(config.DEFAULT_MODEL), progress=download.for_stderr())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, help="GGUF file or folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=PEERS, help="this peer, repeatable")
    parser.add_argument("--out", type=Path, help="write everything as JSON here")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    path = args.model or default_model()
    if args.peer:
        print(json.dumps(measure(PEERS[args.peer], path)))
        return
    report: dict[str, Any] = {"model": path.name, "machine": machine()}
    report |= {"prompt": PROMPT, "answer": ANSWER, "rounds": args.rounds}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in args.only or PEERS}
    for i in range(args.rounds):
        for name in samples:
            samples[name].append(in_a_process(name, path))
            shown = {key: round(value, 2) for key, value in samples[name][-1].items()}
            print(f"{i + 1}/{args.rounds} {name}: {shown}", file=sys.stderr)
    medians = {name: median_of(taken) for name, taken in samples.items()}
    report |= {"raw": samples, "median": medians, "command": command_times(path, args.rounds)}
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(table(medians))
    print(
        f"\n`edgekv --help`: {report['command']['help_s']:.3f} s; "
        f"first character of `edgekv run`: {report['command']['first_token_s']:.2f} s."
    )


if __name__ == "__main__":
    main()
