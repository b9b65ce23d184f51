"""An engine that says what a test tells it to, when the test tells it to."""

import threading

from edgekv.engine import Finished, Loaded, Notice, Prefilled, Reply, Text
from edgekv.models.shape import ModelShape
from edgekv.template import ChatTemplate
from edgekv.tokenizer import Tokenizer
from edgekv.tokenizer.base import Frame

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SHAPE = ModelShape(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64, context=8192)


class ByteTokenizer(Tokenizer):
    """One token a byte."""

    def __init__(self, template=TEMPLATE):
        super().__init__(
            Frame(frozenset({256}), chat_template=ChatTemplate(template, "", "")), 257, False
        )

    def _encode(self, text):
        return list(text.encode())

    def _piece(self, token_id):
        return bytes([token_id]) if token_id < 256 else b""


class Script:
    """What the engine says to each request in turn, and what it was asked.

    Each answer is a list of pieces: text, an Exception to raise, `Wait` to hold until released.
    """

    def __init__(self, *answers, default="An answer.", load_error=None, template=TEMPLATE):
        self.answers = list(answers)
        self.default = default
        self.load_error = load_error
        self.load_gate = threading.Event()
        self.load_gate.set()
        self.template = template
        self.requests = []
        self.engines = []
        self.cached = 0
        self.decode_s = 1.0
        self.notices = []

    def __call__(self, path, store):
        engine = ScriptedEngine(self)
        self.engines.append(engine)
        return engine

    def prompts(self):
        return [bytes(request.prompt).decode() for request in self.requests]


class Gate:
    """A place in an answer where the engine waits for `open`, or for a cancel."""

    def __init__(self):
        self.event = threading.Event()
        self.reached = threading.Event()

    def open(self):
        self.event.set()


class ScriptedEngine:
    def __init__(self, script):
        self.script = script
        self.closed = False
        self.threads = []

    def start(self):
        assert self.script.load_gate.wait(30)
        if self.script.load_error is not None:
            raise self.script.load_error
        return Loaded({}, SHAPE, ByteTokenizer(self.script.template), 0.1)

    def submit(self, request):
        self.script.requests.append(request)
        answers = self.script.answers
        answer = answers.pop(0) if answers else [self.script.default]
        reply = Reply()
        thread = threading.Thread(target=self._say, args=(request, reply, answer), daemon=True)
        self.threads.append(thread)
        thread.start()
        return reply

    def _say(self, request, reply, answer):
        n, tokens = len(request.prompt), 0
        reply.put(Prefilled(n // 2, n))
        for piece in answer:
            if isinstance(piece, Gate):
                piece.reached.set()
                while not piece.event.wait(0.005) and not reply.cancelled:
                    pass
            if reply.cancelled:
                reply.put(self._finished(request, "cancelled", tokens))
                return
            if isinstance(piece, BaseException):
                reply.put(piece)
                return
            if isinstance(piece, Notice):
                reply.put(piece)
            if isinstance(piece, str):
                tokens += 1
                reply.put(Text(piece))
        reply.put(self._finished(request, "stop", tokens))

    def _finished(self, request, reason, tokens):
        n = len(request.prompt)
        return Finished(
            reason=reason,
            prompt_tokens=n,
            completion_tokens=tokens,
            cached_tokens=self.script.cached,
            evicted_tokens=max(0, n + tokens - request.policy.last_slot - 1),
            ttft_s=0.5,
            prefill_s=0.5,
            decode_s=self.script.decode_s,
            kv_bytes=request.policy.nbytes,
            kv_peak_bytes=request.policy.nbytes,
        )

    def notices(self):
        return self.script.notices

    def close(self):
        self.closed = True


__all__ = ["Gate", "Script", "ScriptedEngine"]
