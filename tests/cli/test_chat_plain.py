"""`edgekv chat --plain`: lines in, lines out."""

import pytest

from edgekv.sessions import Store
from tests.tui.terminal import Terminal, when

pytestmark = pytest.mark.model

UP, CTRL_C, CTRL_D = "\x1b[A", "\x03", "\x04"


def plain(edgekv, model, text, *args, **options):
    command = ("chat", "--plain", "-m", model, "--max-tokens", 12, *args)
    return edgekv(*command, stdin=None, input=text, **options)


def test_a_script_reads_replies_alone_on_standard_output(edgekv, default_model):
    done = plain(edgekv, default_model, "What is the capital of France?\n/undo\n/history\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"
    assert "/help says" in done.stderr and "taken back" in done.stderr
    assert "Traceback" not in done.stderr


def test_sessions_are_kept_listed_opened_and_gone_on_with(edgekv, default_model):
    plain(edgekv, default_model, "Say yes.\n")
    done = plain(edgekv, default_model, "Say no.\n/sessions\n/retry\n/new\n/open Say yes.\n", "-c")
    assert "Say yes. (4 messages)" in done.stdout
    assert "Say yes.: 2 messages" in done.stderr
    with Store() as store:
        assert [each.role for each in store.messages(store.get("Say yes.").id)] == [
            "user",
            "assistant",
        ] * 2


def test_no_persist_and_faults_in_one_line(edgekv, default_model, home):
    done = plain(
        edgekv, default_model, "/quit\n/nonsense\n/open x\n/continue\nHi\\\nthere\n", "--no-persist"
    )
    assert done.returncode == 0
    refused = next(line for line in done.stderr.splitlines() if "no command /quit" in line)
    assert "exit" in refused
    assert "no command /nonsense" in done.stderr
    assert "nothing is stored" in done.stderr
    assert "no reply to go on with" in done.stderr
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_where_nothing_can_be_kept_the_chat_says_so_and_goes_on(edgekv, default_model, tmp_path):
    (tmp_path / "file").write_text("")
    environment = {"EDGEKV_HOME": str(tmp_path / "file" / "home")}
    done = plain(edgekv, default_model, "Hi\n", env=environment)
    assert done.returncode == 0 and done.stdout.strip()
    assert "nothing is kept: " in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--session", "a", "-c"], "each choose a session"),
        (["--no-persist", "-c"], "keeps no session"),
        (["--window", "1", "--kv-budget", "1MB"], "give it or --window"),
    ],
)
def test_options_that_contradict_each_other_are_refused(edgekv, args, words):
    done = edgekv("chat", "--plain", *args)
    assert done.returncode == 2
    assert words in done.stderr


def test_lines_are_edited_and_recalled_in_a_terminal(default_model):
    for _ in range(2):
        args = ("chat", "--plain", "-m", default_model, "--max-tokens", 8)
        with Terminal(*args) as app:
            app.until("> ")
            if _:
                app.send(UP).until("/exit").send(UP).until("long story")
                app.send(UP).until("What is the capital of Italy?")
                app.send("\x15")
            app.send("What is the capital of Itay?\x1b[D\x1b[Dl\r").until("tokens at")
            app.send("Write a very long story.\r")
            when(lambda: app.text.count("tokens at") == 2 and app.text.rstrip().endswith(">"))
            app.send(CTRL_C).until("leaves")
            app.send("/exit\r")
            assert app.wait() == 0
    with Store() as store:
        assert store.messages(store.last().id)[0].content == "What is the capital of Italy?"
