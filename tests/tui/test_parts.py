"""The parts without a screen: figures, occupancy, previews, thinking, settings, preferences."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.config import Config
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.quality import measured_kld, record_kld
from edgekv.tui.commands import COMMANDS, LOCAL_KEYS, bindings, help_text
from edgekv.tui.figures import age, size, thousands
from edgekv.tui.occupancy import Occupancy
from edgekv.tui.preferences import Preferences, load_preferences, save_preferences
from edgekv.tui.preview import preview
from edgekv.tui.printable import one_line, printable, typed
from edgekv.tui.settings import Settings
from edgekv.tui.thinking import ThinkingSplitter, split
from tests.tui.scripted import SHAPE


def test_every_command_has_an_action_and_every_action_a_command():
    from edgekv.tui.actions import ACTIONS

    assert set(ACTIONS) == {command.name for command in COMMANDS}


def test_help_names_every_command_and_key():
    text = help_text()
    for command in COMMANDS:
        assert command.help in text
        assert not command.slash or f"/{command.name}" in text
    assert all(keys in text for keys, _, _ in LOCAL_KEYS)


def test_no_two_commands_share_a_key_and_each_can_be_remapped():
    keys = [binding.key for binding in bindings()]
    assert len(keys) == len(set(keys))
    assert all(binding.id for binding in bindings())


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1k"), (3100, "3.1k"), (131072, "131k"), (999_999, "1M")],
)
def test_thousands(number, text):
    assert thousands(number) == text


def test_sizes_and_ages():
    assert [size(n) for n in (5, 98_400_000, 1_800_000_000)] == ["5 B", "98 MB", "1.8 GB"]
    assert [age(s) for s in (-9, 5, 300, 7200, 86_400 * 2, 86_400 * 50)] == [
        "now",
        "now",
        "5 min",
        "2 h",
        "2 days",
        "7 weeks",
    ]


@given(st.integers(0, 3000), st.integers(1, 700), st.integers(0, 64))
def test_occupancy_adds_up(tokens, window, n_sink):
    policy = SHAPE.policy(window, n_sink)
    now = Occupancy(policy, tokens)
    assert now.sinks + now.pinned + now.kept + now.evicted == tokens
    assert 0 <= now.used_nbytes <= policy.nbytes
    assert (now.state == "rolling") == (now.evicted > 0)


def test_a_preview_says_what_is_read_again():
    now = SHAPE.policy(256)
    assert preview(now, now, 100).notes == ["nothing changes"]
    assert preview(now, now.with_window(512), 100).notes == ["nothing has to be read again"]
    fewer = preview(now, SHAPE.policy(256, 4, 3, 3), 2000, prefill_tps=100)
    assert fewer.notes[0] == "the 2k tokens of this chat are read again, about 20 s"
    assert "not measured" in fewer.notes[1]
    smaller = preview(now, now.with_window(128), 250)
    assert "118 more tokens of this chat will no longer be seen" in smaller.notes
    larger = preview(now.with_window(128), now, 250)
    assert "118 tokens of this chat will be seen again" in larger.notes
    assert ("KV memory", "209 kB", "172 kB") in smaller.rows


def test_a_preview_shows_measured_quality():
    quality = {(4, 4): 0.0042, (3, 3): 0.02}
    found = preview(SHAPE.policy(256), SHAPE.policy(256, 4, 3, 3), 10, quality=quality)
    assert ("KL to fp16", "0.0042 nats", "0.0200 nats") in found.rows


def test_measured_quality_is_kept_and_damage_is_as_if_not_measured(home):
    record_kld("m", (4, 4), 0.0042)
    record_kld("m", (3, 3), 0.02)
    assert measured_kld("m") == {(4, 4): 0.0042, (3, 3): 0.02}
    assert measured_kld("other") == {}
    for content in ("[1]", "{", '{"m": 3}', '{"m": {"4": 1, "x,y": 2}}'):
        (home / "data" / "quality.json").write_text(content)
        assert measured_kld("m") == {}


@given(st.text(alphabet="<>/think ab\n", max_size=60), st.data())
def test_thinking_is_split_alike_under_any_chunking(text, data):
    whole = split("<think>" + text)
    splitter, pieces, at = ThinkingSplitter(), [], 0
    full = "<think>" + text
    while at < len(full):
        step = data.draw(st.integers(1, 5))
        pieces.append(splitter.feed(full[at : at + step]))
        at += step
    pieces.append(splitter.finish())
    assert tuple("".join(part) for part in zip(*pieces, strict=True)) == whole
    joined = whole[0] + "</think>" + whole[1] if "</think>" in text else whole[0] + whole[1]
    assert joined == text


def test_settings_of_a_session_lose_to_flags_and_bad_ones_are_left_out():
    base = Settings(Config(window=512, temp=0.5), given=frozenset({"window"}))
    stored = {"window": 64, "temp": "hot", "k_bits": 3, "think": False, "n_sink": 8, "x": 1}
    found = base.of_session(stored)
    assert (found.config.window, found.config.temp, found.config.k_bits) == (512, 0.5, 3)
    assert (found.config.n_sink, found.think) == (8, False)
    assert base.of_session(found.stored()) == found


def test_a_budget_chooses_the_window_until_one_is_given():
    from edgekv.conversation import Prompt

    settings = Settings(Config(), budget=500_000)
    policy = settings.policy(SHAPE, Prompt(()))
    assert policy.nbytes <= 500_000 < policy.with_window(policy.window + 64).nbytes
    assert settings.changed(window=100).policy(SHAPE, Prompt(())).window == 100
    with pytest.raises(InvalidValue):
        settings.changed(window=0)


def test_a_window_that_must_not_roll_limits_the_reply():
    settings = Settings(Config(max_tokens=50), overflow="error")
    policy = SHAPE.policy(100)
    assert [settings.longest(policy, n) for n in (10, 80)] == [50, 24]
    with pytest.raises(DoesNotFit):
        settings.longest(policy, 104)


def test_preferences_survive_and_damage_is_no_fault(tmp_path):
    path = tmp_path / "chat.json"
    chosen = Preferences(theme="nord", history=False, bell=True)
    save_preferences(path, chosen)
    assert load_preferences(path) == chosen
    for content in (b"", b"[1]", b"\xff", b'{"theme": 3, "history": "no", "x": 1}'):
        path.write_bytes(content)
        assert load_preferences(path) == Preferences()


@given(st.text())
def test_printable_text_has_no_controls(text):
    shown = printable(text)
    assert all(c == "\n" or c.isprintable() or ord(c) > 0x9F for c in shown)
    assert "\n" not in one_line(text) and len(one_line(text)) <= 200
    assert typed(typed(text)) == typed(text)
    typed(text).encode()


def test_frames_come_at_the_rate_of_the_app_unless_the_user_gives_another():
    code = "import edgekv.tui.app, textual.constants as c; print(c.MAX_FPS)"
    for own, expected in ({}, "120"), ({"TEXTUAL_FPS": "30"}, "30"):
        environment = {k: v for k, v in os.environ.items() if k != "TEXTUAL_FPS"} | own
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr
