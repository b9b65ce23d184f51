"""A tiny model in a wheel, a catalog that names it, and package clients that do as told."""

import hashlib
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

CONTENT = bytes(range(256)) * 400
MEMBER = "tiny_model/tiny.gguf"
SHA256 = hashlib.sha256(CONTENT).hexdigest()

ENTRY = """
[{alias}]
title = "Tiny"
architecture = "llama"
layers = 2
n_heads = 2
n_kv_heads = 1
head_dim = 64
context = 128
parameters = 1000
weight_bits = 4
license = "mit"
[[{alias}.sources]]
package = "tiny-model"
version = "1.0"
member = "{member}"
sha256 = "{sha256}"
size = {size}
"""

FAKE_PIP = """
import os, pathlib, shutil, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
state = pathlib.Path(os.environ["FAKE_STATE"])
with (state / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
(state / "pid").write_text(str(os.getpid()))
if os.environ.get("FAKE_FAIL"):
    print("WARNING: retrying")
    print("ERROR: " + os.environ["FAKE_FAIL"])
    print("hint: something else")
    sys.exit(1)
half = folder / "half.tmp"
half.write_bytes(b"x" * 1000)
(state / "started").touch()
time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
half.unlink()
if not os.environ.get("FAKE_NOTHING"):
    shutil.copy(state / "tiny_model-1.0-py3-none-any.whl", folder)
"""


@dataclass
class Tiny:
    """The state folder of the fake client and the environment that makes edgekv use it."""

    state: Path
    env: dict[str, str]
    home: Path

    @property
    def wheel(self) -> Path:
        return self.state / "tiny_model-1.0-py3-none-any.whl"

    @property
    def folder(self) -> Path:
        return self.home / "data" / "models" / "tiny"

    @property
    def calls(self) -> list[str]:
        file = self.state / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def leftovers(self) -> list[Path]:
        """Everything below the models folder but the lock."""
        models = self.home / "data" / "models"
        return [path for path in models.rglob("*") if path.suffix != ".lock"]

    def describe(self, **changes) -> None:
        facts = {"alias": "tiny", "member": MEMBER, "sha256": SHA256, "size": len(CONTENT)}
        self.home.mkdir(exist_ok=True)
        (self.home / "models.toml").write_text(ENTRY.format(**(facts | changes)))

    def pack(self, content: bytes = CONTENT, member: str = MEMBER) -> None:
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)


@pytest.fixture
def tiny(tmp_path, home) -> Tiny:
    state, modules = tmp_path / "state", tmp_path / "modules"
    state.mkdir()
    (modules / "pip").mkdir(parents=True)
    (modules / "pip" / "__init__.py").touch()
    (modules / "pip" / "__main__.py").write_text(textwrap.dedent(FAKE_PIP))
    made = Tiny(state, {"PYTHONPATH": str(modules), "FAKE_STATE": str(state)}, home)
    made.pack()
    made.describe()
    return made
