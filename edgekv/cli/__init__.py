"""The `edgekv` command: subcommands imported on use, and faults turned into exit codes.

To add a command, add one line to COMMANDS.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from edgekv import __version__
from edgekv.errors import EdgekvError, ExitCode

# name -> (where the click command is, what `edgekv --help` says of it)
COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("edgekv.cli.chat:chat", "Chat in the terminal; `edgekv` alone does so too."),
    "run": ("edgekv.cli.run:run", "Answer one prompt."),
    "serve": ("edgekv.cli.serve:serve", "Serve the model over HTTP, as OpenAI's API."),
    "sessions": ("edgekv.cli.sessions:sessions", "Stored conversations and their KV."),
    "models": ("edgekv.cli.models:models", "List, download, remove and choose models."),
    "plan": ("edgekv.cli.plan:plan_command", "Say what a model's KV cache takes, before loading."),
    "eval": ("edgekv.cli.evaluate:evaluate", "Measure what a cache policy does to a model."),
    "bench": ("edgekv.cli.bench:bench", "Measure speed and memory, also against other libraries."),
    "doctor": ("edgekv.cli.doctor:doctor", "Say what this machine and installation are."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when called, and whose `main` never tracebacks."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        # `edgekv` alone is the chat, and so it is with the chat's options.
        if args and args[0].startswith("-") and args[0].partition("=")[0] not in own:
            args = ["chat", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every command for its first line of help.
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        **extra: Any,  # noqa: ANN401 - click's own
    ) -> NoReturn:
        """Run the command line and exit with one of ExitCode."""
        extra["standalone_mode"] = False
        try:
            result = super().main(args, prog_name or "edgekv", **extra)
            sys.stdout.flush()
            code = result if isinstance(result, int) else ExitCode.OK
        except BaseException as error:
            code = _report(error)
        _silence_broken_stdout()
        sys.exit(int(code))


def _report(error: BaseException) -> int:
    """Say on standard error what happened; return the exit code."""
    match error:
        case SystemExit():
            raise error
        case EdgekvError():
            _complain(str(error) or type(error).__name__)
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return ExitCode.USAGE
        case click.UsageError():
            _complain(_usage(error))
            return ExitCode.USAGE
        case click.ClickException():
            _complain(error.format_message())
            return ExitCode.FAILURE
        case click.Abort() | KeyboardInterrupt():
            _complain("interrupted")
            return ExitCode.INTERRUPTED
        case BrokenPipeError():
            return ExitCode.FAILURE
        case OSError(filename=None, strerror=str(reason)):
            # Files are opened by name: what has none is where the answer went.
            _complain(f"standard output cannot be written: {reason}")
            return ExitCode.FAILURE
    return _unexpected(error)


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "edgekv"
    return f"{error.format_message().rstrip('.')} (see `{path} --help`)"


def _unexpected(error: BaseException) -> int:
    if os.environ.get("EDGEKV_DEBUG"):
        import traceback

        traceback.print_exception(error)
    else:
        kind = type(error).__name__
        _complain(f"unexpected {kind}: {error} (run with EDGEKV_DEBUG=1 for the traceback)")
    return ExitCode.FAILURE


def _complain(text: str) -> None:
    """One line on standard error, whatever is in `text`: names of files may hold anything."""
    line = " ".join(text.split())
    click.echo("edgekv: " + "".join(c if c.isprintable() else "?" for c in line), err=True)


def _silence_broken_stdout() -> None:
    """Keep the interpreter from complaining, on its way out, about a pipe nobody reads."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="edgekv", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Chat with a local model without end, in a memory size fixed in advance."""
    if ctx.invoked_subcommand is None:
        command = main.get_command(ctx, "chat")
        assert command is not None
        command.main(args=[], prog_name="edgekv", standalone_mode=False)
