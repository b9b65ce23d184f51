"""Faults become one line and an exit code; stdout carries data alone; start-up stays light."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from edgekv import __version__, cli, errors
from edgekv.cli import LazyGroup, main


def one_line(result, code):
    assert result.returncode == code
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("edgekv: ")
    return result.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(edgekv, flag):
    result = edgekv(flag)
    assert result.returncode == 0 and result.stderr == ""
    for name, (_, text) in cli.COMMANDS.items():
        assert name in result.stdout and text in result.stdout


def test_version(edgekv):
    assert edgekv("--version").stdout == f"edgekv {__version__}\n"


def test_script_is_the_same_command():
    script = Path(sys.executable).with_name("edgekv")
    done = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert done.stdout == f"edgekv {__version__}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_of_the_table_loads(name):
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, click.Command) and command.name == name
    assert edgekv_help(name).exit_code == 0


def edgekv_help(name):
    return CliRunner().invoke(main, [name, "--help"])


@pytest.mark.parametrize("args", [["models"]])
def test_group_alone_shows_help_on_stderr(edgekv, args):
    result = edgekv(*args)
    assert result.returncode == 2 and result.stdout == "" and "Usage:" in result.stderr


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["nonsense"], "No such command"),
        (["--nonsense"], "No such option"),
        (["models", "nonsense"], "edgekv models --help"),
        (["models", "pull"], "Missing argument"),
        (["models", "list", "extra"], "unexpected extra argument"),
    ],
)
def test_usage_error(edgekv, args, word):
    assert word in one_line(edgekv(*args), 2)


FAULTS = {
    "EdgekvError": 1,
    "InvalidValue": 2,
    "ModelNotFound": 3,
    "DoesNotFit": 4,
    "UnsupportedModel": 5,
    "DamagedFile": 5,
    "TemplateError": 5,
}


def failing(error):
    @click.group(cls=LazyGroup, invoke_without_command=True)
    def group():
        raise error

    return CliRunner().invoke(group, [])


@pytest.mark.parametrize(("name", "code"), FAULTS.items())
def test_each_fault_has_its_code(name, code):
    result = failing(getattr(errors, name)("what\nhappened \x1b[31mred"))
    assert result.exit_code == code and result.stdout == ""
    assert result.stderr == "edgekv: what happened ?[31mred\n"


def test_interrupt():
    result = failing(KeyboardInterrupt())
    assert result.exit_code == 130 and result.stderr.strip() == "edgekv: interrupted"


def test_unexpected_error_is_one_line_too(monkeypatch):
    result = failing(ValueError("odd"))
    assert result.exit_code == 1
    line = "edgekv: unexpected ValueError: odd (run with EDGEKV_DEBUG=1 for the traceback)\n"
    assert result.stderr == line
    monkeypatch.setenv("EDGEKV_DEBUG", "1")
    assert "Traceback" in failing(ValueError("odd")).stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_full_stdout_is_told():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edgekv", "models", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


def test_closed_pipe_is_quiet():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "edgekv", "models", "list"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert done.stderr == "" and done.returncode == 1


def test_options_of_the_chat_need_not_its_name(edgekv):
    done = edgekv("--plain", "--window", "0", input="")
    assert done.returncode == 2 and "window" in done.stderr
    done = edgekv("-c", "--session", "a")
    assert done.returncode == 2 and "each choose a session" in done.stderr
    assert edgekv("--version").returncode == 0
    assert "edgekv chat --help" in edgekv("--nope").stderr
