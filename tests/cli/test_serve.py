"""`edgekv serve` as a process: what it refuses to start with, and how it ends."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

pytestmark = pytest.mark.model


@pytest.fixture
def start(default_model):
    """A function: a server's process and address; none outlives its test."""
    started = []

    def start(*args):
        command = [sys.executable, "-m", "edgekv", "serve", "-m", str(default_model)]
        process = subprocess.Popen(
            [*command, "--port", "0", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        line = process.stderr.readline()
        assert " on http://" in line, line
        return process, line.split(" on ")[1].split("/v1")[0]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def end(process, number):
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert (stdout, stderr) == ("", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_server_cleanly(start, number):
    process, url = start()
    with urllib.request.urlopen(f"{url}/health") as response:
        assert json.load(response) == {"status": "ok"}
    end(process, number)


def test_a_signal_ends_a_server_in_the_middle_of_a_stream(start):
    process, url = start()
    body = {"messages": [{"role": "user", "content": "Tell me a very long story."}]}
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body | {"stream": True}).encode()
    )
    with urllib.request.urlopen(asked) as response:
        assert b"assistant" in response.readline()
        process.send_signal(signal.SIGTERM)
        rest = response.read().decode()
    assert '"code":"shutting_down"' in rest and rest.endswith("data: [DONE]\n\n")
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        ("--host", "0.0.0.0"),
        ("--host", "::"),
        ("--host", "192.168.1.5"),
        ("--api-key", ""),
        ("--api-key-file", "missing"),
        ("--port", "99999"),
        ("--parallel", "0"),
        ("--kv-bits", "5"),
        ("--window", "0"),
        ("--system", "x"),
    ],
    ids=" ".join,
)
def test_what_it_refuses_to_start_with(edgekv, default_model, args):
    result = edgekv("serve", "-m", default_model, *args)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_a_budget_below_one_window_is_exit_4(edgekv, default_model):
    result = edgekv("serve", "-m", default_model, "--kv-budget", "1MB", "--window", "4096")
    assert result.returncode == 4
    assert "1,000,000" in result.stderr


def test_a_port_in_use_is_exit_1_and_one_line(edgekv, default_model):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = edgekv("serve", "-m", default_model, "--port", port)
    assert result.returncode == 1
    assert "--port" in result.stderr and len(result.stderr.splitlines()) == 1
