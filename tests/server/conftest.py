"""Servers on loopback: over the default model, and over an engine that says what it is told."""

import asyncio
import json
import queue
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import httpx
import pytest

from edgekv.config import Config
from edgekv.engine import Engine, Finished, Load, Loaded, Prefilled, Text
from edgekv.grammar import GrammarTokens
from edgekv.loading import open_checkpoint
from edgekv.models.shape import ModelShape
from edgekv.server.app import make_app
from edgekv.server.listen import bind, make_server
from edgekv.server.security import Access
from edgekv.server.service import Service, Settings
from edgekv.template import ChatTemplate

NAME = "little"
HERMES = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
LLAMA = (
    HERMES.replace("<tool_call>", "")
    .replace("</tool_call>", "")
    .replace('"arguments"', '"parameters"')
)
THINKING = HERMES + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>"
THINKING += "\n\n{% endif %}"


@dataclass
class Served:
    """A server that runs, and a client of it."""

    url: str
    service: Service
    client: httpx.Client

    def chat(self, text="hi", **fields):
        messages = [{"role": "user", "content": text}]
        return self.client.post("/v1/chat/completions", json={"messages": messages, **fields})

    def idle(self, seconds=20.0):
        """Wait until nothing is in flight; returns whether it came to that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.service.in_flight == 0 and self.service.engine.load.running == 0:
                return True
            time.sleep(0.02)
        return False


@contextmanager
def serving(engine, access=None, store=None, **changes):
    """Serve an engine on a free port."""
    shape = engine.loaded.shape
    settings = replace(Settings(NAME, Config(), shape.policy(window=512)), **changes)
    service = Service(engine, settings, store)
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = make_server(make_app(service, access or Access()), service, "critical")
        run = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        run.start()
        url = f"http://127.0.0.1:{port}"
        try:
            while not server.started:
                time.sleep(0.01)
            with httpx.Client(base_url=url, timeout=60) as client:
                yield Served(url, service, client)
        finally:
            server.should_exit = True
            run.join(30)
            assert not run.is_alive()


class Scripted:
    """An engine that answers every request with the same pieces, on a thread of its own.

    pieces: text, or an exception to fail with, or a number of seconds to wait.
    """

    def __init__(self, loaded):
        self.loaded = loaded
        self.pieces = ["Hel", "lo"]
        self.reason = "stop"
        self.requests = []
        self.cancelled_after = None
        self._running = 0
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @cached_property
    def grammar_tokens(self):
        return GrammarTokens(self.loaded.tokenizer, self.loaded.config["vocab_size"])

    @property
    def load(self):
        return Load(self._running, 0, 0, 0, 0)

    def submit(self, request, reply):
        self.requests.append(request)
        self._jobs.put((request, reply))

    def close(self):
        self._jobs.put(None)
        self._thread.join()

    def _run(self):
        while (job := self._jobs.get()) is not None:
            self._running = 1
            self._answer(*job)
            self._running = 0

    def _answer(self, request, reply):
        n = len(request.prompt)
        reply.put(Prefilled(n, n))
        reason, said = self.reason, 0
        for piece in self.pieces:
            if isinstance(piece, Exception):
                reply.put(piece)
                return
            if isinstance(piece, float):
                time.sleep(piece)
            elif reply.cancelled:
                reason, self.cancelled_after = "cancelled", said
                break
            else:
                reply.put(Text(piece))
                said += 1
        reply.put(Finished(reason, n, said, 0, 0.1, 0.1, 0.1, 1, 1))


@pytest.fixture(scope="session")
def engine(default_model):
    with Engine(default_model) as engine:
        yield engine


@pytest.fixture(scope="session")
def served(engine):
    with serving(engine) as served:
        yield served


@pytest.fixture(scope="session")
def checkpoint(default_model):
    return open_checkpoint(default_model)


@pytest.fixture
def scripted(checkpoint):
    """A function: serve a scripted engine, with another chat template if one is given."""
    with Scripts(checkpoint) as scripts:
        yield scripts.serve


class Scripts:
    def __init__(self, checkpoint):
        self._checkpoint = checkpoint
        self._open = []

    def __enter__(self):
        return self

    def serve(self, pieces=("Hel", "lo"), template=None, access=None, **changes):
        tokenizer = self._checkpoint.tokenizer
        own = tokenizer.chat_template
        if template is not None:
            tokenizer.chat_template = ChatTemplate(template, None, None)
        config = self._checkpoint.config
        engine = Scripted(Loaded(config, ModelShape.from_config(config), tokenizer, 0.0))
        engine.pieces = list(pieces)
        context = serving(engine, access, **changes)
        self._open.append((context, engine, tokenizer, own))
        return context.__enter__()

    def __exit__(self, *fault):
        for context, engine, tokenizer, own in reversed(self._open):
            context.__exit__(None, None, None)
            engine.close()
            tokenizer.chat_template = own


def events(response):
    """The values of a stream's events; "[DONE]" as it is."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def check_error(response, status, code=None, param=None):
    """The one error object, whole, with the right values."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert "Traceback" not in error["message"]
    if code is not None:
        assert error["code"] == code, error
    if param is not None:
        assert error["param"] == param, error
    return error
