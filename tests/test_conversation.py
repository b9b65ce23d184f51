import pytest

from edgekv.conversation import MAX_PROMPT, Prompt, chat_prompt, checked, raw_prompt
from edgekv.errors import InvalidValue, UnsupportedModel
from edgekv.template import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class FakeTokenizer:
    """One token a character."""

    def __init__(self, template=TEMPLATE):
        self.chat_template = ChatTemplate(template, None, None) if template else None

    def encode(self, text, *, add_special=False):
        return ([1] if add_special else []) + [ord(c) for c in text]


def user(text):
    return {"role": "user", "content": text}


def test_the_system_message_is_the_part_that_no_user_text_changes():
    messages = [{"role": "system", "content": "be brief"}, user("hello")]
    prompt = chat_prompt(FakeTokenizer(), messages)
    assert prompt.n_system == 1 + len("<system>be brief</><user>")


@pytest.mark.parametrize("text", ["~", "~ like the probe", "-"])
def test_user_text_like_the_probe_is_not_taken_for_the_system_message(text):
    messages = [{"role": "system", "content": "be brief"}, user(text)]
    prompt = chat_prompt(FakeTokenizer(), messages)
    assert prompt.n_system == 1 + len("<system>be brief</><user>")


def test_without_a_system_message_nothing_is_pinned():
    assert chat_prompt(FakeTokenizer(), [user("hello")]).pinned(4) == 0


@pytest.mark.parametrize(("n_system", "pinned"), [(0, 0), (4, 0), (5, 64), (68, 64), (69, 128)])
def test_pinned_blocks_cover_the_system_message_behind_the_sinks(n_system, pinned):
    assert Prompt((0,) * 200, n_system).pinned(4) == pinned


def test_raw_text_gets_no_template():
    assert raw_prompt(FakeTokenizer(None), "ab").tokens == (1, 97, 98)


def test_a_model_without_a_template_says_so():
    with pytest.raises(UnsupportedModel, match="--raw"):
        chat_prompt(FakeTokenizer(None), [user("hello")])


@pytest.mark.parametrize("text", ["", " \n\t", "x" * (MAX_PROMPT + 1)])
def test_empty_and_oversized_prompts_are_refused(text):
    with pytest.raises(InvalidValue):
        checked(text)
