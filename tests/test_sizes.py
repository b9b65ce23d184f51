"""The size budget: short files, short functions, every signature annotated."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "edgekv"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 400, 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path):
    tree = ast.parse(path.read_text("utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def unannotated(function) -> list[str]:
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    starred = [arg for arg in (spec.vararg, spec.kwarg) if arg]
    missing = [a.arg for a in [*named, *starred] if not a.annotation and a.arg not in SELF]
    return missing if function.returns else [*missing, "return"]


SELF = ("self", "cls")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_budget(path):
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= MAX_FILE, f"{lines} lines"
    for function in functions(path):
        where = f"{path.name}:{function.lineno} {function.name}"
        # In cli/ the signature repeats the option declarations, which have no limit.
        body = function.body[0].lineno if "cli" in path.parts else function.lineno
        assert function.end_lineno - body < MAX_FUNCTION, where
        assert not unannotated(function), f"{where}: {unannotated(function)}"


def test_names_say_what_is_inside():
    banned = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert not [path for path in FILES if path.stem in banned]
