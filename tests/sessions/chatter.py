"""A scripted chat in a process of its own: python -m tests.sessions.chatter FOLDER MODEL TURNS.

It goes on from whatever is stored: a reply that was cut off is made again.
"""

import sys
from pathlib import Path

from edgekv.cache.policy import CachePolicy
from edgekv.conversation import chat_prompt
from edgekv.engine import Engine, Finished, Notice, Request, Text
from edgekv.sampling import Sampling
from edgekv.sessions import SessionNotFound, Store
from edgekv.sessions.recording import Recording

REPLY = 70
QUESTIONS = [f"{n}: " + "the one in the tin " * (2 + n % 2) for n in range(1000)]


def policy_of(engine) -> CachePolicy:
    # In 16 bits a block is what it was in fp16, so that every way to go on is the same.
    return engine.loaded.shape.policy(window=256, k_bits=16, v_bits=16)


def reply(engine, messages, session=None, write=lambda text: None):
    prompt = chat_prompt(engine.loaded.tokenizer, messages)
    request = Request(prompt.tokens, policy_of(engine), Sampling(temp=0), REPLY, session=session)
    said = ""
    for event in engine.submit(request):
        if isinstance(event, Text):
            said += event.text
            write(event.text)
        elif isinstance(event, Finished):
            return said, event
        elif isinstance(event, Notice):
            print(event.text, flush=True)
    raise AssertionError


def talk(folder: Path, model: Path, turns: int) -> None:
    with Store(folder) as store, Engine(model, store) as engine:
        try:
            session = store.get("chat").id
        except SessionNotFound:
            session = store.create("chat").id
        lock = store.lock(session)
        said = [one for one in store.messages(session) if not one.partial]
        store.truncate(session, len(said) // 2 * 2)
        for turn in range(len(said) // 2, turns):
            recording = Recording(store, session, lambda text: print(text, flush=True))
            recording.add("user", QUESTIONS[turn])
            messages = [{"role": m.role, "content": m.content} for m in store.messages(session)]
            print("asked", turn, flush=True)
            _, end = reply(engine, messages, session, recording.write)
            recording.finish(end.tokens, end.reason)
            print("answered", turn, end.cached_tokens, flush=True)
        lock.release()


def cold(model: Path, turns: int) -> list[str]:
    """The replies where nothing is ever reused."""
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": QUESTIONS[turn]})
        with Engine(model) as engine:
            messages.append({"role": "assistant", "content": reply(engine, messages)[0]})
    return [one["content"] for one in messages[1::2]]


if __name__ == "__main__":
    talk(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
