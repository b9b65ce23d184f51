"""How long a session takes to go on, beside reading its conversation again, and what it writes.

    python benchmarks/resume.py -m MODEL [--window 4096] [--out results.json]

Every figure comes from `edgekv run --json` in a process of its own, on a text that fills the
window. "ours" is the time to the first token less the decoding of one token.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TEXT = Path(__file__).parent.parent / "tests" / "data" / "mansfield_park.txt"


def run(home: Path, *args: object) -> dict[str, Any]:
    """The report of one `edgekv run`, with the seconds its process took in all."""
    command = [sys.executable, "-m", "edgekv", "run", "--json", *map(str, args)]
    begun = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"EDGEKV_HOME": str(home)},
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {"wall_s": time.perf_counter() - begun}


def stored(home: Path) -> int:
    return sum(path.stat().st_size for path in home.rglob("*") if path.is_file())


def measure(model: str, window: int, text: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        policy = ("-m", model, "--window", window)
        first = run(home, *policy, "--session", "s", "--file", text, "--max-tokens", 8)
        size = stored(home)
        resumed = run(home, *policy, "-c", "Go on.", "--max-tokens", 8)
        turn = stored(home) - size
    computed = resumed["usage"]["prompt_tokens"] - resumed["usage"]["cached_tokens"]
    ttft = first["timings"]["ttft_s"], resumed["timings"]["ttft_s"]
    return {
        "prompt_tokens": first["usage"]["prompt_tokens"],
        "cached_tokens": resumed["usage"]["cached_tokens"],
        "computed_tokens": computed,
        "read_again_s": ttft[0],
        "resumed_s": ttft[1],
        "times_shorter": ttft[0] / ttft[1],
        "load_s": resumed["timings"]["load_s"],
        "wall_s": resumed["wall_s"],
        "stored_bytes": size,
        "turn_bytes": turn,
        "kv_bytes": resumed["kv"]["bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--characters", type=int, default=18_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(TEXT.read_text("utf-8")[5000 : 5000 + args.characters])
        file.flush()
        result = measure(args.model, args.window, Path(file.name))
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
