"""The status page in a browser, while a stream runs: its numbers move."""

import re
import shutil
import threading

import httpx
import pytest

from tests.server.conftest import serving

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture
def page():
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def number(page, element):
    return int(re.sub(r"\D", "", page.text_content(f"#{element}")) or 0)


@pytest.fixture
def served(engine):
    with serving(engine, kv_budget=100_000_000) as served:
        yield served


def test_the_page_shows_moving_numbers(served, page):
    faults = []
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    page.on(
        "request",
        lambda request: faults.append(request.url) if served.url not in request.url else None,
    )

    def stream():
        body = {
            "messages": [{"role": "user", "content": "Tell me a very long story."}],
            "max_tokens": 150,
            "stream": True,
        }
        httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120)

    running = threading.Thread(target=stream)
    running.start()
    page.goto(served.url)
    page.wait_for_function("document.getElementById('running').textContent.startsWith('1 of')")
    first = number(page, "written")
    page.wait_for_function(
        f"+document.getElementById('written').textContent.replace(/\\D/g, '') > {first}"
    )
    assert page.eval_on_selector("#gauge", "meter => meter.value") > 0
    assert "tokens a second" in page.text_content("#speed")
    assert number(page, "window") == 512
    running.join()
    page.wait_for_function("document.getElementById('running').textContent.startsWith('0 of')")
    assert not faults
