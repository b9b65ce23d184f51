"""Replies: streamed, stopped, kept, gone on with, taken back."""

import pytest

from edgekv.errors import DoesNotFit
from edgekv.sessions import Store
from edgekv.tui.widgets.message import ReplyMessage
from tests.tui.harness import running, ui
from tests.tui.scripted import Gate, Script


def stored_messages():
    with Store() as store:
        return store.messages(store.last().id)


@ui
async def test_a_reply_streams_in_as_markdown_and_is_whole_at_the_end(model):
    text = "Some **bold** text.\n\n- one\n- two\n\n```python\nx = [1]\n```\n"
    async with running(model, Script(list(text))) as chat:
        await chat.ask("hello")
        assert chat.messages == [("user", "hello"), ("assistant", text)]
        shown = chat.shown()
        assert "Some bold text." in shown and "• two" in shown and "x = [1]" in shown
        assert [message.content for message in stored_messages()] == ["hello", text]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
@ui
async def test_a_key_stops_the_reply_and_what_there_is_is_kept_and_marked(model, key):
    gate = Gate()
    async with running(model, Script(["Half of ", "it", gate, " never"])) as chat:
        await chat.send("go")
        await chat.until(lambda: "Half of it" in chat.shown(), "the first words")
        await chat.press(key)
        await chat.idle()
        assert chat.messages[-1] == ("assistant", "Half of it")
        assert "stopped by you" in chat.shown()
        assert stored_messages()[-1].finish_reason == "cancelled"
        assert chat.app.is_running


@ui
async def test_stopping_works_while_the_model_loads(model):
    script = Script()
    script.load_gate.clear()
    async with running(model, script, ready=False) as chat:
        await chat.send("go")
        assert "loading" in chat.shown()
        await chat.press("escape")
        await chat.idle()
        script.load_gate.set()
        await chat.ready()
        assert chat.messages == [("user", "go")]
        assert script.requests == []
        await chat.press("f5")
        await chat.until(lambda: len(chat.messages) == 2, "the question is answered after all")


@ui
async def test_stopping_works_while_the_prompt_is_read(model):
    gate = Gate()
    async with running(model, Script([gate, "late"])) as chat:
        await chat.send("go")
        await chat.until(gate.reached.is_set, "the prompt is being read")
        await chat.until(lambda: "reading · 50%" in chat.shown(), "progress")
        await chat.press("escape")
        await chat.idle()
        assert chat.messages == [("user", "go")]
        assert "F5 answers it" in chat.banner


@ui
async def test_each_reply_says_what_it_took(model):
    script = Script(["a", "b", "c"])
    script.cached = 12
    async with running(model, script) as chat:
        await chat.ask("hello")
        shown = chat.shown()
        assert "3 tokens at 2.0/s" in shown
        assert "first after 0.50 s" in shown
        assert "12 cached" in shown


@ui
async def test_the_whole_conversation_is_sent_each_turn(model):
    async with running(model, Script(["one"], ["two"]), system="Be brief.") as chat:
        await chat.ask("first")
        await chat.ask("second")
        assert chat.script.prompts()[1] == (
            "<system>Be brief.\n<user>first\n<assistant>one\n<user>second\n<assistant>"
        )


@ui
async def test_a_stall_is_said(model):
    gate = Gate()
    now = [0.0]
    async with running(model, Script(["word", gate])) as chat:
        chat.screen.activity._clock = lambda: now[0]
        await chat.send("go")
        await chat.until(lambda: "writing" in chat.shown(), "writing")
        now[0] = 60.0
        await chat.until(lambda: "nothing for" in chat.shown(), "the stall")


@ui
async def test_an_error_in_the_middle_is_a_banner_and_keeps_the_partial_reply(model):
    async with running(model, Script(["Some ", DoesNotFit("too little memory")])) as chat:
        await chat.ask("go")
        await chat.until(lambda: "too little memory" in chat.banner, "the banner")
        assert chat.messages[-1] == ("assistant", "Some ")
        assert stored_messages()[-1].partial
        assert "/continue" in chat.shown()
        await chat.press("escape")
        assert not chat.banner


@ui
async def test_an_unexpected_fault_is_a_banner_too(model, monkeypatch):
    monkeypatch.delenv("EDGEKV_DEBUG")
    async with running(model, Script([ZeroDivisionError("[/red] oh")])) as chat:
        await chat.ask("go")
        await chat.until(lambda: "unexpected ZeroDivisionError: [/red] oh" in chat.banner, "it")
        await chat.ask("again")
        assert chat.messages[-1] == ("assistant", "An answer.")


@ui
async def test_a_reply_being_written_is_on_disk_within_a_second_and_marked_partial(model):
    gate = Gate()
    async with running(model, Script(["first ", gate, "second"])) as chat:
        await chat.send("go")
        await chat.until(lambda: "first" in chat.shown(), "the first word")
        assert (stored_messages()[-1].content, stored_messages()[-1].partial) == ("first ", True)
        gate.open()
        await chat.idle()
        assert not stored_messages()[-1].partial


@ui
async def test_an_interrupted_reply_is_offered_and_gone_on_with(model):
    with Store() as store:
        session = store.create("cut")
        store.append(session.id, "user", "count")
        store.append(session.id, "assistant", "one, two", partial=True)
    async with running(model, Script([", three"])) as chat:
        assert "F5 goes on with it" in chat.banner
        assert "interrupted: /continue (F5) goes on" in chat.shown()
        await chat.press("f5")
        await chat.until(lambda: chat.messages[-1][1] == "one, two, three", "it goes on")
        await chat.idle()
        assert chat.script.prompts() == ["<user>count\n<assistant>one, two"]
        assert "one, two, three" in chat.shown()
        assert len(chat.transcript.views) == 2
        assert not stored_messages()[-1].partial


@ui
async def test_retry_replaces_the_reply_and_redo_brings_the_old_one_back(model):
    async with running(model, Script(["first"], ["second"])) as chat:
        await chat.ask("go")
        await chat.press("ctrl+r")
        await chat.until(lambda: chat.messages[-1] == ("assistant", "second"), "the retry")
        await chat.idle()
        assert chat.script.prompts()[0] == chat.script.prompts()[1]
        await chat.command("/redo")
        await chat.until(lambda: chat.messages[-1] == ("assistant", "first"), "the old reply")
        assert "first" in chat.shown() and "second" not in chat.shown()


@ui
async def test_edit_takes_the_question_back_into_the_prompt(model):
    async with running(model, Script(["one"], ["two"])) as chat:
        await chat.ask("questoin")
        await chat.press("ctrl+up")
        await chat.until(lambda: chat.composer.text == "questoin", "it is in the prompt")
        assert chat.messages == []
        await chat.ask("question")
        assert chat.messages == [("user", "question"), ("assistant", "two")]


@ui
async def test_editing_an_early_turn_cuts_there_and_loses_nothing(model):
    async with running(model, Script(["A"], ["B"], ["C"])) as chat:
        await chat.ask("a")
        await chat.ask("b")
        await chat.press("alt+up", "alt+up", "alt+up", "alt+up", "e")
        await chat.until(lambda: chat.composer.text == "a", "the first question")
        assert chat.messages == []
        with Store() as store:
            (copy,) = store.sessions(deleted=True)
            assert [each.content for each in store.messages(copy.id)] == ["a", "A", "b", "B"]


@ui
async def test_undo_takes_back_a_turn_and_redo_brings_it_back(model):
    async with running(model, Script(["A"], ["B"])) as chat:
        await chat.ask("a")
        await chat.ask("b")
        await chat.command("/undo")
        await chat.until(lambda: len(chat.messages) == 2, "undone")
        await chat.command("/redo")
        await chat.until(lambda: len(chat.messages) == 4, "redone")
        assert [each.content for each in stored_messages()] == ["a", "A", "b", "B"]


@ui
async def test_thinking_is_folded_counted_and_opened_by_a_key(model):
    text = ["<th", "ink>", "deep in", " thought", "</thi", "nk>", "The answer"]
    async with running(model, Script(text)) as chat:
        await chat.ask("go")
        shown = chat.shown()
        assert "thought: 3 words" in shown and "The answer" in shown
        assert "deep in" not in shown
        await chat.press("ctrl+t")
        await chat.until(lambda: "deep in thought" in chat.shown(), "unfolded")
        await chat.press("ctrl+t")
        await chat.until(lambda: "deep in thought" not in chat.shown(), "folded")
    async with running(model, last=True) as chat:
        assert "thought: 3 words" in chat.shown()


@ui
async def test_a_key_ends_the_thinking_and_has_the_answer_begin(model):
    gate = Gate()
    script = Script(["<think>", "hm", gate, "more"], ["Forty-two."])
    async with running(model, script) as chat:
        await chat.send("go")
        await chat.until(lambda: "thinking" in chat.shown(), "it thinks")
        await chat.press("f6")
        await chat.idle()
        assert chat.messages[-1][1] == "<think>hm\n</think>\n\nForty-two."
        assert chat.script.prompts()[1].endswith("<assistant><think>hm\n</think>\n\n")


@ui
async def test_a_budget_of_thinking_ends_it_by_itself(model):
    gate = Gate()
    script = Script(["<think>", *["so "] * 30, gate], ["Done."])
    async with running(model, script) as chat:
        await chat.command("/think 20")
        await chat.ask("go")
        assert chat.messages[-1][1].endswith("</think>\n\nDone.")


@ui
async def test_a_template_that_opens_the_thought_itself(model):
    from tests.tui.scripted import TEMPLATE

    template = TEMPLATE.replace("<assistant>{% endif", "<assistant><think>\n{% endif")
    async with running(model, Script(["hm", "</think>", "Yes."], template=template)) as chat:
        await chat.ask("go")
        assert chat.messages[-1][1] == "<think>\nhm</think>Yes."
        view = chat.transcript.views[-1]
        assert isinstance(view, ReplyMessage) and view.view.source == "Yes."


@ui
async def test_a_second_prompt_waits_in_the_composer_while_a_reply_runs(model):
    gate = Gate()
    async with running(model, Script(["one", gate])) as chat:
        await chat.send("a")
        await chat.put("b")
        await chat.press("enter")
        assert chat.composer.text == "b"
        assert "Esc stops it" in chat.toasts
        gate.open()
        await chat.idle()
        assert len(chat.script.requests) == 1


@ui
async def test_overflow_error_refuses_what_does_not_fit(model):
    async with running(model, Script(), window=130, overflow="error") as chat:
        await chat.ask("x" * 200)
        await chat.until(lambda: "the cache holds 134" in chat.banner, "refused")
        assert chat.script.requests == []
