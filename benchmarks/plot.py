"""Draw perplexity along a stream from the JSON of `edgekv eval ppl` and benchmarks/absolute.py.

python benchmarks/plot.py OUT.svg "ours=ours.json" "no sinks=no-sinks.json" ...

A file's own `fresh` rows are drawn as well. Needs matplotlib.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

plt.switch_backend("Agg")
plt.rcParams["svg.hashsalt"] = "edgekv"  # The same data give the same file.


def main() -> None:
    out, *curves = sys.argv[1:]
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for curve in curves:
        name, _, path = curve.partition("=")
        found = json.loads(Path(path).read_text("utf-8"))
        for label, rows in ((name, found["by_position"]), (f"{name}, fresh", found.get("fresh"))):
            if rows:
                middles = [(first + last) / 2000 for first, last, _ in rows]
                style = ":" if label.endswith("fresh") else "-"
                axes.plot(middles, [row[2] for row in rows], style, marker=".", label=label)
    axes.set_yscale("log")
    axes.set_xlabel("thousand tokens streamed")
    axes.set_ylabel("perplexity")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main()
