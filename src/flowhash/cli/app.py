"""The command's frame: its sub-commands, what all of them do first, and how it ends.

Exit code 0 is success, 2 the user's mistake (one line says which), 1 a fault of ours, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from flowhash import __version__
from flowhash.cli.config_file import words_of
from flowhash.cli.locations import refuse_misplaced
from flowhash.cli.options import with_groups
from flowhash.cli.output import Stopped, in_words, without_notices
from flowhash.errors import (
    DamagedFileError,
    InputError,
    MissingExtraError,
    StorageError,
    TrainingError,
)

STOPPED = 130  # by Ctrl-C, as shells have it
# A file where a folder is named, no permission: the user's to mend; a full disk is no mistake.
MISTAKES = (None, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES)
# In the order in which they are met, as `flowhash --help` shows them.
COMMANDS = (
    "demo", "fit", "index", "search", "calibrate", "serve", "adapt", "copy", "evaluate",
    "reproduce", "bench", "table", "data", "bulk",
)  # fmt: skip


class GuardedCommand(TyperCommand):
    """A command that looks at its arguments before it does anything."""

    def invoke(self, ctx: Any) -> Any:
        """Refuse what is misplaced, then run."""
        refuse_misplaced(" ".join(words_of(ctx)), self.params, ctx.params)
        with without_notices(bool(ctx.params.get("quiet"))):
            return super().invoke(ctx)


class SubCommands(Mapping[str, Any]):
    """The sub-commands by their names: each a module of ``commands``, loaded when it is named.

    Such a module has a ``command``, an application of typer: of one command, or a group of them.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._loaded:
            application = import_module(f"flowhash.cli.commands.{name}").command
            for command in application.registered_commands:
                command.cls = GuardedCommand
                assert command.callback is not None
                command.callback = with_groups(command.callback)
            self._loaded[name] = typer.main.get_command(application)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """A group whose commands are loaded when they are named; its help names all of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = cast(Any, SubCommands())

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, for which nothing is loaded."""
        return list(self.commands)


app = typer.Typer(
    cls=LazyGroup,
    name="flowhash",
    help="Learn a search index together with an embedding.",
    epilog="Start with:  flowhash demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"flowhash {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Show the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Learn a search index together with an embedding."""


def run(arguments: Sequence[str]) -> NoReturn:
    """Run the command with these arguments and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without λ shows a question mark
    sys.exit(_code(arguments))


def _code(arguments: Sequence[str]) -> int:
    """Run, say what went wrong in one line, and return the exit code."""
    try:
        returned = app(args=list(arguments), standalone_mode=False)
        sys.stdout.flush()
        if returned == STOPPED:  # newer versions of typer say so by their return
            return _fail("stopped", STOPPED)
        return returned if isinstance(returned, int) else 0
    except (InputError, MissingExtraError) as error:
        return _fail(in_words(error), 2)
    except Stopped as stopped:
        return _fail(f"stopped; {stopped}", STOPPED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", STOPPED)
    except TrainingError as error:
        return _fail(str(error), 1)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except StorageError as error:
        # No table, or one in use, is the user's mistake; damage or a full disk is not.
        mistake = error.errno in MISTAKES and not isinstance(error, DamagedFileError)
        return _fail(in_words(error), 2 if mistake else 1)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        traceback.print_exc()
        return _fail("this is a fault of FlowHash; please report it with the lines above", 1)


def _fail(words: str, code: int) -> int:
    print(f"flowhash: {words}", file=sys.stderr)
    return code


def _usage(error: Exception) -> int:
    """A command line that cannot be read, as typer says it, in one line.

    Typer brings its own copy of click in some versions, so that the class has no one name.
    """
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help() if context is not None else error)
        return 0
    path = "flowhash" if context is None else context.command_path
    words = " ".join(_without_values(error).split())
    return _fail(f"{words.rstrip('.')}; `{path} --help` shows what there is", 2)


def _without_values(error: Exception) -> str:
    """What typer says, without what was typed: it may be a key.

    Of the name of an option or a command so much is shown as looks like one.
    """
    words: str = error.format_message()  # type: ignore[attr-defined]
    option = getattr(error, "option_name", None)
    if option and (name := re.match("-{0,2}[a-z_-]*", option)) and name[0] != option:
        words = words.replace(option, f"{name[0]}…")
    words = re.sub(r"(unexpected extra arguments?(\(s\))?) \(.*\)", r"\1", words, flags=re.DOTALL)
    words = re.sub(r"(No such command) (?!'[a-z_-]+').*", r"\1", words, flags=re.DOTALL)
    return re.sub(r"(Invalid value.*?: )'.*' is not", r"\1it is not", words, flags=re.DOTALL)
