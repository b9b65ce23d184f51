"""Precedence, refusals that name what is at fault, and edits that touch one line."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv import config
from edgekv.errors import EdgekvError, InvalidValue


def write(home, text):
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text, "utf-8", newline="")


def test_flag_beats_variable_beats_file_beats_default(home, monkeypatch):
    assert config.load().window is None and config.load().n_sink == 4
    write(home, "window = 100\nn_sink = 1\ntemp = 1\n")
    monkeypatch.setenv("EDGEKV_WINDOW", "200")
    assert config.load().window == 200
    loaded = config.load({"window": 300, "n_sink": None})
    assert (loaded.window, loaded.n_sink, loaded.temp) == (300, 1, 1.0)
    assert isinstance(loaded.temp, float)


def test_kv_bits_sets_both_within_its_layer(home, monkeypatch):
    write(home, "k_bits = 8\nv_bits = 2\n")
    monkeypatch.setenv("EDGEKV_V_BITS", "3")
    assert (config.load().k_bits, config.load().v_bits) == (8, 3)
    both = config.load({"kv_bits": 16})
    assert (both.k_bits, both.v_bits) == (16, 16)
    mixed = config.load({"kv_bits": 16, "k_bits": 2})
    assert (mixed.k_bits, mixed.v_bits) == (2, 16)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("windw = 3", "unknown key 'windw': did you mean window?"),
        ("zzzzz = 3", "unknown key 'zzzzz'; known are model"),
        ("window = 0", "window: expected at least 1, got 0"),
        ("window = 2.5", "window: expected a whole number, got 2.5"),
        ("window = true", "window: expected a whole number, got True"),
        ("temp = nan", "temp: expected a finite number at least 0, got nan"),
        ("temp = inf", "temp: expected a finite number"),
        ("top_p = 0", "top_p: expected a finite number more than 0 and at most 1, got 0"),
        ("kv_bits = 5", "kv_bits: expected one of 2, 3, 4, 8, 16, got 5"),
        ("model = ''", "model: the model name is empty"),
        ("seed = -1", "seed: expected at least 0"),
        ("[section]", "unknown key 'section'"),
        ("model = ", "cannot be read as TOML"),
    ],
)
def test_file_refused(home, text, words):
    write(home, text)
    with pytest.raises(InvalidValue) as caught:
        config.load()
    assert str(home / "config.toml") in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("WINDOW", "many"), ("WINDOW", "-1"), ("TEMP", "nan"), ("TOP_P", "2"), ("KV_BITS", "5")],
)
def test_variable_refused(monkeypatch, name, value):
    monkeypatch.setenv(f"EDGEKV_{name}", value)
    with pytest.raises(InvalidValue, match=f"^EDGEKV_{name}: expected"):
        config.load()


def test_flag_refused_by_its_own_name():
    with pytest.raises(InvalidValue, match="^--top-p: expected"):
        config.load({"top_p": 2.0})


def test_file_that_is_not_utf8(home):
    home.mkdir()
    (home / "config.toml").write_bytes(b"system = '\xff'")
    with pytest.raises(InvalidValue, match="cannot be read"):
        config.load()


@given(st.sampled_from(sorted(config.RULES)), st.text())
def test_no_variable_text_raises_anything_else(key, text):
    try:
        config.from_text(key, text, "X")
    except InvalidValue as error:
        assert str(error).startswith("X: ")


def test_paths_follow_the_environment(home, monkeypatch, tmp_path):
    assert config.paths().config == home / "config.toml"
    assert config.paths().models == home / "data" / "models"
    monkeypatch.delenv("EDGEKV_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config.paths().config == tmp_path / "xdg" / "edgekv" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.paths().config == tmp_path / ".config" / "edgekv" / "config.toml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'model = "new"\n'),
        ("# mine\nwindow = 5 # why\n", '# mine\nwindow = 5 # why\nmodel = "new"\n'),
        ("window = 5", 'window = 5\nmodel = "new"\n'),
        ('a = 1\nmodel="old"   # keep\ntemp = 1\n', None),
        ("# model = 'old'\n  model  =  'old'#c\n", "# model = 'old'\n  model  =  \"new\"#c\n"),
        ('window = 1\r\nmodel = "old"\r\n', 'window = 1\r\nmodel = "new"\r\n'),
        (
            'system = """\nmodel = "text"\n"""\nmodel = "old"\n',
            'system = """\nmodel = "text"\n"""\nmodel = "new"\n',
        ),
    ],
)
def test_set_model_edits_one_line(home, before, after):
    write(home, before)
    if after is None:
        with pytest.raises(InvalidValue, match="unknown key 'a'"):
            config.set_model("new")
        after = before
    else:
        config.set_model("new")
    assert (home / "config.toml").read_bytes().decode() == after
    assert [path.name for path in home.iterdir()] == ["config.toml"]


def test_set_model_gives_up_rather_than_break_the_file(home):
    write(home, 'model = """old"""\n')
    with pytest.raises(InvalidValue, match="edit that line by hand"):
        config.set_model("new")
    assert (home / "config.toml").read_text() == 'model = """old"""\n'


@given(
    st.text(min_size=1).filter(str.strip),
    st.lists(st.sampled_from(["# note", "", "window = 9  # w", "\ttemp = 0.5"]), unique=True),
    st.booleans(),
)
def test_set_model_keeps_the_rest(name, lines, already):
    before = "\n".join([*lines, *(["model = 'old' # m"] if already else [])])
    try:
        wanted = tomllib.loads(before) | {"model": name}
        after = config._edit_model(before, wanted, config.Path("config.toml"))
    except InvalidValue:
        # TOML cannot hold a lone surrogate or a DEL in a basic string.
        assert any(not c.isprintable() for c in name)
        return
    assert tomllib.loads(after) == wanted
    assert after.startswith("\n".join(lines))


def test_set_model_through_a_link_keeps_the_link(home, tmp_path):
    (tmp_path / "dotfiles.toml").write_text("temp = 1\n")
    home.mkdir()
    (home / "config.toml").symlink_to(tmp_path / "dotfiles.toml")
    config.set_model("new")
    assert (home / "config.toml").is_symlink()
    assert (tmp_path / "dotfiles.toml").read_text() == 'temp = 1\nmodel = "new"\n'


def test_set_model_refuses_a_name_that_is_not_text(home):
    with pytest.raises(InvalidValue, match="cannot hold"):
        config.set_model("m\udcff.gguf")
    assert not home.exists()


def test_set_model_where_nothing_can_be_written(home):
    home.write_text("a file")
    with pytest.raises(EdgekvError, match="cannot write .*config.toml"):
        config.set_model("new")
