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
# In the order in which they are met, as `flowhash --help` shows them: with how the help of each
# begins, so that showing them loads none.
COMMANDS = {
    "demo": "Do the whole job: learn base and buckets, build the table, compare, report, "
    "search page.",
    "fit": "Learn an encoder from labelled data: a base embedding, then its buckets (Algorithm 1).",
    "index": "Put items into a table, so that they are found: encode, add, keep.",
    "search": "Find the stored items nearest to a query, and see how little was scanned.",
    "calibrate": "Find out how many buckets a recall takes, so that a search can be asked for one.",
    "serve": "Serve a table: a search page for people, an HTTP API for programs.",
    "adapt": "Fit the buckets to the items that are in a table, without labels.",
    "copy": "Copy a table into PostgreSQL or Qdrant, or back into a folder, and compare the two.",
    "evaluate": "Compare an encoder with other ways to search the same data, and write a report.",
    "reproduce": "Repeat the paper's experiments: its Tables 1 to 5, Figures 2 and 4, and honest "
    "rivals.",
    "bench": "Measure FlowHash on this machine, against its peers in the same run.",
    "table": "Look at a stored hash table, how it is, check it, make it compact.",
    "data": "Look at a data set, check it, download it.",
    "bulk": "Encode, index, search, find neighbours in parts: for very many items or queries.",
}


class GuardedCommand(TyperCommand):
    """A command that looks at its arguments before it does anything."""

    def invoke(self, ctx: Any) -> Any:
        """Refuse what is misplaced, then run."""
        from flowhash.cli.config_file import words_of
        from flowhash.cli.locations import refuse_misplaced
        from flowhash.cli.output import without_notices

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
            from flowhash.cli.options import with_groups

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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, for which nothing is loaded either."""
        loaded = self.commands
        self.commands = {name: TyperCommand(name, help=COMMANDS[name]) for name in loaded}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = loaded


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
        return _fail(_in_words(error), 2)
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
        return _fail(_in_words(error), 2 if mistake else 1)
    except Exception as error:
        from flowhash.cli.output import Stopped

        if isinstance(error, Stopped):
            return _fail(f"stopped; {error}", STOPPED)
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        traceback.print_exc()
        return _fail("this is a fault of FlowHash; please report it with the lines above", 1)


def _fail(words: str, code: int) -> int:
    print(f"flowhash: {words}", file=sys.stderr)
    return code


def _in_words(error: Exception) -> str:
    from flowhash.cli.output import in_words

    return in_words(error)


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
