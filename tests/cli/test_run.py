"""`edgekv run` as its user meets it: the command in a process of its own, on the real model."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France?"


@pytest.fixture
def run(edgekv, default_model):
    def run(*args, **options):
        options.setdefault("stdin", None if "input" in options else subprocess.DEVNULL)
        return edgekv("run", "-m", default_model, *args, **options)

    return run


def one_line(result, code):
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("edgekv: ")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_json_answers_the_question_and_reports_what_it_took(run):
    result = run("--json", QUESTION, "--temp", 0)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert "Paris" in report["text"]
    assert report["finish_reason"] == "stop"
    assert report["session"] is None
    assert report["usage"] == {
        "prompt_tokens": 37,
        "completion_tokens": 8,
        "cached_tokens": 0,
        "evicted_tokens": 0,
    }
    kv = report["kv"]
    assert kv["bytes"] == kv["peak_bytes"] == kv["budget_bytes"]
    # 63 blocks and a spare of 13,824 bytes in 30 layers, and 132 tokens in fp16.
    assert kv["bytes"] == 30 * (64 * 13_824 + 132 * 768)
    assert kv["bytes_per_token"] == 6480
    assert (kv["k_bits"], kv["v_bits"], kv["window"], kv["n_sink"]) == (4, 4, 4096, 4)
    assert set(report["timings"]) == {"load_s", "ttft_s", "prefill_tps", "decode_tps"}


def test_a_pipe_gets_plain_text_and_piped_input_joins_the_argument(run):
    result = run("What is the capital of", "--temp", 0, input="France?\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "The capital of France is Paris.\n"
    assert result.stderr == ""


def test_stats_go_to_standard_error(run):
    result = run(QUESTION, "--temp", 0, "--stats", "--max-tokens", 2)
    assert result.stdout == "The capital\n"
    assert "37 prompt tokens" in result.stderr


def test_a_stop_string_across_tokens_ends_the_answer_before_it(run):
    result = run(QUESTION, "--temp", 0, "--stop", "ital of Fr", "--json")
    report = json.loads(result.stdout)
    assert (report["text"], report["finish_reason"]) == ("The cap", "stop")


def test_the_same_seed_gives_the_same_answer_and_another_one_another(run):
    args = ("Tell me a story.", "--temp", "1.2", "--max-tokens", 16, "--seed")
    first, again, other = (run(*args, seed).stdout for seed in (7, 7, 8))
    assert first == again != other


def test_a_rolling_window_is_reported_in_evicted_tokens(run):
    text = "Count these words: " + "one two three four " * 60
    result = run(text, "--window", 64, "--max-tokens", 4, "--json", "--system", "Be brief.")
    report = json.loads(result.stdout)
    used = report["usage"]["prompt_tokens"] + report["usage"]["completion_tokens"]
    assert report["usage"]["evicted_tokens"] in (used - 68, used - 69)
    assert report["kv"]["peak_bytes"] == report["kv"]["budget_bytes"]


def test_the_system_message_is_pinned_in_whole_blocks_unless_refused(run):
    args = (QUESTION, "--system", "You are a pirate. Speak as one.", "--max-tokens", 2, "--json")
    assert json.loads(run(*args).stdout)["kv"]["pinned"] == 64
    assert json.loads(run(*args, "--no-pin-system").stdout)["kv"]["pinned"] == 0


def test_a_kv_budget_chooses_the_window_and_is_kept(run):
    report = json.loads(run(QUESTION, "--kv-budget", "8MB", "--max-tokens", 2, "--json").stdout)
    kv = report["kv"]
    assert 8_000_000 - 64 * 6480 < kv["bytes"] == kv["budget_bytes"] <= 8_000_000
    assert 128 < kv["window"] < 4096


def test_overflow_error_names_both_numbers(run):
    text = "word " * 200
    line = one_line(run(text, "--window", 100, "--overflow", "error"), 4)
    assert "104" in line
    assert "2" in line.split("prompt has ")[1].split(" tokens")[0]


def test_overflow_error_ends_a_reply_that_would_roll(run):
    report = json.loads(
        run("Tell me a long story.", "--window", 60, "--overflow", "error", "--json").stdout
    )
    usage = report["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == 64
    assert (report["finish_reason"], usage["evicted_tokens"]) == ("length", 0)


def test_raw_continues_text_without_a_template(run):
    report = json.loads(
        run("One, two, three,", "--raw", "--temp", 0, "--max-tokens", 8, "--json").stdout
    )
    assert report["usage"]["prompt_tokens"] < 12
    assert "four" in report["text"]


def started(default_model, *args):
    return subprocess.Popen(
        [sys.executable, "-m", "edgekv", "run", "-m", str(default_model), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_control_c_keeps_what_was_written(default_model):
    process = started(default_model, "Write a very long story.", "--temp", "0")
    first = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len((first + rest).strip()) >= 3
    assert stderr == ""


def test_control_c_in_json_reports_a_cancelled_answer(default_model):
    # Nothing shows when the answer begins: on a busy machine it may be later than usual.
    for seconds in (5, 15, 45):
        process = started(default_model, "Write a very long story.", "--json", "--temp", "0")
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        if stdout:
            break
    assert json.loads(stdout)["finish_reason"] == "cancelled"


def test_a_reader_that_leaves_ends_the_command_quietly(default_model):
    process = started(default_model, "Write a very long story.", "--temp", "0")
    process.stdout.read(3)
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(timeout=60) != 0
    assert stderr == ""
    process.stderr.close()


def test_a_terminal_gets_markdown(default_model):
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgekv", "run", "-m", str(default_model)]
        + ["Repeat exactly: **Paris**", "--temp", "0", "--max-tokens", "12"],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(slave)
    chunks = []

    def read():
        try:
            while data := os.read(master, 4096):
                chunks.append(data)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=60) == 0
    reader.join(timeout=10)
    process.stderr.close()
    text = b"".join(chunks).decode()
    assert "Paris" in text
    assert "\x1b[" in text


@pytest.mark.parametrize(
    "args",
    [
        ("--window", "0"),
        ("--window", "many"),
        ("--kv-bits", "5"),
        ("--k-bits", "0"),
        ("--temp", "nan"),
        ("--temp", "-1"),
        ("--top-p", "2"),
        ("--top-p", "0"),
        ("--min-p", "-0.1"),
        ("--top-k", "-1"),
        ("--max-tokens", "0"),
        ("--repetition-penalty", "0"),
        ("--seed", "-1"),
        ("--n-sink", "-1"),
        ("--n-sink", "65"),
        ("--stop", ""),
        ("--kv-budget", "lots"),
        ("--kv-budget", "8MB", "--window", "512"),
        ("--overflow", "maybe"),
        ("--nonsense",),
        ("--raw", "--system", "Be brief."),
        ("--file", "missing.txt"),
    ],
    ids=" ".join,
)
def test_a_bad_flag_is_one_line_and_exit_2(run, args):
    one_line(run("hi", *args), 2)


def test_budgets_and_windows_that_do_not_fit_are_exit_4(run):
    assert "3,870,720" in one_line(run("hi", "--kv-budget", "1kB"), 4)
    result = run("hi", "--window", 99_999_999)
    assert result.returncode == 4
    assert "648,003,041,280" in result.stderr


def test_a_window_beyond_the_training_is_allowed_with_a_warning(run):
    result = run("hi", "--window", 9000, "--max-tokens", 1)
    assert result.returncode == 0
    assert "8,192" in one_line_of(result.stderr)


def one_line_of(stderr):
    assert len(stderr.splitlines()) == 1
    return stderr


def test_an_argument_that_is_no_text_is_refused_by_the_place(run):
    assert "not valid UTF-8 at character 1" in one_line(run("a\udcffb"), 2)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_an_answer_that_cannot_be_written_says_so(default_model):
    command = [sys.executable, "-m", "edgekv", "run", "hi", "-m", str(default_model)]
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        result = subprocess.run(
            [*command, "--max-tokens", "2"],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith("edgekv: standard output cannot be written: No space")


@pytest.mark.parametrize("prompt", ["", "   \n"])
def test_an_empty_prompt_is_a_usage_error(run, prompt):
    assert "empty" in one_line(run(prompt), 2)


def test_no_prompt_at_all_is_a_usage_error(run):
    assert "no prompt" in one_line(run(), 2)


def test_a_prompt_of_a_megabyte_is_refused_with_its_size(run, tmp_path):
    path = tmp_path / "big.txt"
    path.write_text("word " * 210_000)
    assert "1,050,000" in one_line(run("--file", path), 2)
    assert "over the limit" in one_line(run(input=path.read_text()), 2)


def test_invalid_utf8_is_refused_with_its_place(default_model, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"abc\xff\xfe")
    with path.open("rb") as stdin:
        result = subprocess.run(
            [sys.executable, "-m", "edgekv", "run", "-m", str(default_model)],
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "byte 3" in one_line(result, 2)


@pytest.fixture
def bad_models(default_model, tmp_path):
    data = default_model.read_bytes()
    (tmp_path / "truncated.gguf").write_bytes(data[: 50 * 1000 * 1000])
    (tmp_path / "zero.gguf").touch()
    (tmp_path / "other.gguf").write_bytes(data.replace(b"llama", b"zebra", 1))
    (tmp_path / "noise.gguf").write_bytes(b"not a model")
    (tmp_path / "no-config").mkdir()
    folder = tmp_path / "other-family"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "zebra"}')
    return tmp_path


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("missing.gguf", 3, "no such file"),
        ("truncated.gguf", 5, "damaged"),
        ("zero.gguf", 5, "empty"),
        ("other.gguf", 5, "zebra"),
        ("noise.gguf", 5, "GGUF"),
        ("no-config", 5, "config.json"),
        ("other-family", 5, "llama, mistral, qwen2, qwen3"),
    ],
)
def test_a_bad_model_is_one_line_and_its_exit_code(edgekv, bad_models, name, code, says):
    result = edgekv("run", "hi", "-m", bad_models / name, stdin=subprocess.DEVNULL)
    assert says in one_line(result, code)
