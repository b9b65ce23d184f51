"""Which part may import which (.importlinter), and what start-up may load."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("mlx", "textual", "huggingface_hub", "numpy", "tokenizers", "jinja2", "rich")


def test_contracts():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        ["nonsense"],
        ["models", "--help"],
        ["sessions", "list"],
        ["sessions", "list", "--json"],
        ["models", "list"],
        ["models", "list", "--json"],
        ["models", "show", "smollm2-135m"],
        ["models", "use", "smollm2-135m"],
        ["plan", "smollm2-135m", "--json"],
    ],
)
def test_light_commands_load_nothing_heavy(args):
    code = f"""
import sys
from edgekv.cli import main
try:
    main({args!r})
except SystemExit:
    pass
print("LOADED", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "LOADED []", done.stdout + done.stderr
