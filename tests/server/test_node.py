"""Clients for Node: openai, the Vercel AI SDK, LangChain and Anthropic's; npm fetches them once."""

import json
import subprocess
from pathlib import Path

import pytest

from edgekv.template import ChatTemplate
from tests.server.conftest import HERMES, NAME, serving

pytestmark = [pytest.mark.model, pytest.mark.slow]

PACKAGES = ("openai@6", "ai@6", "@ai-sdk/openai-compatible@2", "@langchain/openai@1")
PACKAGES += ("@anthropic-ai/sdk", "zod")


@pytest.fixture(scope="module")
def node():
    """A folder with the packages and the script in it."""
    folder = Path.home() / ".cache" / "edgekv-tests" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules").is_dir():
        command = ["npm", "install", "--no-audit", "--no-fund", *PACKAGES]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    script = Path(__file__).with_name("clients.mjs")
    (folder / script.name).write_text(script.read_text("utf-8"), "utf-8")
    return folder


def test_clients_for_node_chat_stream_call_tools_and_get_json(engine, node):
    tokenizer = engine.loaded.tokenizer
    own = tokenizer.chat_template
    tokenizer.chat_template = ChatTemplate(HERMES, None, None)
    try:
        with serving(engine) as server:
            done = subprocess.run(
                ["node", "clients.mjs", server.url, NAME],
                cwd=node,
                capture_output=True,
                text=True,
                timeout=300,
            )
    finally:
        tokenizer.chat_template = own
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for client in ("openai", "vercel", "langchain", "anthropic"):
        assert "Paris" in found[client]["chat"], client
        assert found[client]["stream"] == found[client]["chat"], client
        assert found[client]["tool"] in ("Paris", "Rome"), client
    assert found["vercel"]["streamed_tool"] in ("Paris", "Rome")
    assert found["openai"]["json"] in ("small", "large")
    assert json.loads(found["vercel"]["json"])["size"] in ("small", "large")
    assert found["openai"]["fault"] == [404, "model_not_found"]
