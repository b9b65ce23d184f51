"""One table of what the chat can do: it feeds keys, slash commands, the palette and the help.

To add a command, add a row here and an `action_<name>(self, argument: str = "")` to ChatScreen.
"""

from dataclasses import dataclass
from itertools import groupby

from textual.binding import Binding


@dataclass(frozen=True)
class Command:
    """A command: its name is its action and, where `slash`, what follows the slash.

    takes: the argument for people, "" where there is none. footer: shown there while it fits.
    """

    group: str
    name: str
    title: str
    help: str
    keys: str = ""
    takes: str = ""
    slash: bool = True
    footer: bool = False


COMMANDS = (
    Command("Conversation", "new", "New chat", "Start a new conversation.", "ctrl+n"),
    Command(
        "Conversation",
        "sessions",
        "Sessions",
        "List, search, resume, rename, delete and restore conversations.",
        "ctrl+s",
        "[WORDS]",
        footer=True,
    ),
    Command("Conversation", "rename", "Rename", "Give this conversation a title.", takes="[TITLE]"),
    Command(
        "Conversation",
        "branch",
        "Branch",
        "Go on in a copy, from the selected message or the last one.",
    ),
    Command("Conversation", "delete", "Delete", "Delete this conversation; /undelete undoes it."),
    Command("Conversation", "undelete", "Undo delete", "Bring back what was deleted last."),
    Command(
        "Conversation", "find", "Find", "Look for words in this conversation.", "ctrl+f", "[WORDS]"
    ),
    Command(
        "Conversation",
        "export",
        "Export",
        "Write the conversation to a file: .md or .json.",
        "ctrl+e",
        "[PATH]",
    ),
    Command("Conversation", "import", "Import", "Read an exported conversation.", takes="PATH"),
    Command(
        "Reply",
        "stop",
        "Stop",
        "Stop the reply and keep what there is.",
        "escape",
        slash=False,
    ),
    Command("Reply", "retry", "Retry", "Answer the last question once more.", "ctrl+r"),
    Command(
        "Reply",
        "edit",
        "Edit",
        "Take a question back into the prompt: the selected one or the last.",
        "ctrl+up",
    ),
    Command("Reply", "undo", "Undo", "Take back the last question and its reply."),
    Command("Reply", "redo", "Redo", "Bring back what undo, retry or edit took away."),
    Command("Reply", "continue", "Continue", "Go on with a reply that was cut short.", "f5"),
    Command("Reply", "thinking", "Fold thinking", "Show or fold what the model thought.", "ctrl+t"),
    Command("Reply", "answer", "End thinking", "Have the model answer now.", "f6"),
    Command(
        "Prompt",
        "file",
        "Add a file",
        "Put a text file into the prompt. @PATH in a prompt does the same.",
        takes="PATH",
    ),
    Command("Prompt", "editor", "Open editor", "Write the prompt in $EDITOR.", "ctrl+g"),
    Command(
        "Prompt", "history", "Keep history", "Remember prompts, or stop doing so.", takes="on|off"
    ),
    Command("Copy", "copy", "Copy message", "Copy the selected message or last reply.", "ctrl+y"),
    Command("Copy", "code", "Copy code", "Copy a code block; again for the one before.", "f7"),
    Command("Copy", "pager", "Open in pager", "Read the message in $PAGER.", "f8"),
    Command(
        "Copy", "mouse", "Release mouse", "Let the terminal select text itself, or take it back."
    ),
    Command(
        "Model",
        "model",
        "Model",
        "Switch to another model, or get one.",
        "ctrl+o",
        "[NAME]",
        footer=True,
    ),
    Command(
        "Model",
        "settings",
        "Memory settings",
        "Window, bits, sinks and pinning: see what a change costs before it is made.",
        "f3",
        footer=True,
    ),
    Command("Model", "system", "System message", "Set it, or clear it.", takes="[TEXT]"),
    Command(
        "Model",
        "set",
        "Set sampling",
        "temp, top_p, top_k, min_p, repetition_penalty, seed or max_tokens.",
        takes="NAME VALUE",
    ),
    Command("Model", "seed", "Seed", "Same seed, same reply; none is a fresh one.", takes="N|none"),
    Command(
        "Model",
        "think",
        "Thinking",
        "Let the model think, or not, or at most N tokens.",
        takes="on|off|N",
    ),
    Command("App", "theme", "Theme", "Choose the colours.", takes="[NAME]"),
    Command("App", "bell", "Bell", "Ring when a long reply has ended.", takes="on|off"),
    Command("App", "help", "Help", "Keys and commands.", "f1", footer=True),
    Command("App", "interrupt", "Interrupt", "Copy, stop, or ask to quit.", "ctrl+c", slash=False),
    Command("App", "exit", "Quit", "Leave; everything is kept.", "ctrl+d"),
)
BY_NAME = {command.name: command for command in COMMANDS}

# Keys of parts of the screen, which have no command: (key, where, what it does).
LOCAL_KEYS = (
    ("enter", "prompt", "send"),
    ("shift+enter, alt+enter, ctrl+j", "prompt", "new line"),
    ("up, down", "first and last line of the prompt", "earlier and later prompts"),
    ("tab", "prompt", "complete a command or a path"),
    ("alt+up, alt+down", "anywhere", "select the message before, after"),
    ("pageup, pagedown", "anywhere", "scroll the conversation"),
    ("ctrl+home, ctrl+end", "anywhere", "its beginning, its end"),
    ("enter", "message", "unfold or fold"),
    ("y, e, r, b", "message", "copy, edit, retry, branch here"),
    ("ctrl+p", "anywhere", "all commands"),
)


def bindings() -> list[Binding]:
    """The keys of all commands; their ids let a user's keymap replace them."""
    return [
        Binding(
            command.keys,
            f"command('{command.name}')",
            command.title,
            id=command.name,
            show=command.footer,
            priority=True,
            tooltip=command.help,
        )
        for command in COMMANDS
        if command.keys
    ]


def idle_hints() -> list[str]:
    """What the bottom line says while nothing is under way, the most useful first."""
    footer = [f"{_caret(each.keys)} {each.title.lower()}" for each in COMMANDS if each.footer]
    return ["Enter sends", "Alt+Enter new line", *footer, "Ctrl+P all commands"]


def _caret(keys: str) -> str:
    return "+".join(part.capitalize() for part in keys.split("+"))


def matching(typed: str) -> list[Command]:
    """The slash commands whose names begin with what was typed behind the slash."""
    return [command for command in COMMANDS if command.slash and command.name.startswith(typed)]


def help_text() -> str:
    """The whole table as Markdown."""
    parts = []
    for group, commands in groupby(COMMANDS, key=lambda command: command.group):
        parts.append(f"## {group}\n\n| key | command | does |\n|---|---|---|")
        parts.extend(_row(command) for command in commands)
        parts.append("")
    parts.append("## Keys\n\n| key | where | does |\n|---|---|---|")
    parts.extend(f"| {keys} | {where} | {does} |" for keys, where, does in LOCAL_KEYS)
    return "\n".join(parts)


def _row(command: Command) -> str:
    takes = command.takes.replace("|", "\\|")
    slash = f"`/{command.name}{' ' + takes if takes else ''}`" if command.slash else command.title
    return f"| {command.keys} | {slash} | {command.help} |"
