"""Completions of a text on the default model."""

import pytest

pytestmark = pytest.mark.model


def test_completions_take_text_and_tokens(served):
    def text(prompt):
        fields = {"prompt": prompt, "max_tokens": 4}
        return served.client.post("/v1/completions", json=fields).json()["choices"][0]["text"]

    tokens = served.service.engine.loaded.tokenizer.encode("One, two, three,")
    assert text("One, two, three,") == text(["One, two, three,"]) == text(tokens) == text([tokens])


def test_a_completion_that_goes_on_from_an_earlier_one_is_no_trouble(served):
    def run(prompt):
        fields = {"prompt": prompt, "max_tokens": 6}
        return served.client.post("/v1/completions", json=fields).json()["choices"][0]["text"]

    first = run("One, two, three,")
    assert run("One, two, three," + first) == run("One, two, three," + first)
