"""``cascade-train``: finds the command and imports that one alone, so that help and checks start at once.

A command is a module ``cascade_train/commands/NAME.py`` (a dash is an underscore there) with ``HELP`` (one
line), ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from cascade_train import __version__
from cascade_train.commands.printing import printed
from cascade_train.errors import STOPPED, CascadeError, Interrupted, plain
from cascade_train.host.leaving import exit_with

COMMANDS = (
    *("run", "validate", "plan", "convert", "inspect", "nodes", "runs", "dataset", "cache"),
    *("convert-lora", "lora", "nano"),
)
"""In the order of ``cascade-train --help``."""

WRONG = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    0 all went well, 1 something failed while running, 2 the input or an option is wrong, 130 stopped.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a console that cannot show a sign must not end a run
    with printed():
        return _called(list(sys.argv[1:] if argv is None else argv))


def command() -> NoReturn:
    """The program itself: `main` with the words of the command line; ends the process with its exit code.

    At once: with torch loaded the interpreter takes seconds to clear away what the system frees anyway, and
    a person who has pressed Ctrl-C waits for that.
    """
    exit_with(main())


def _called(words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        parser = _parser(name if words and words[0] == name else None)
        args = parser.parse_args(words)
        if getattr(args, "command_run", None) is None:
            parser.print_help()
            return WRONG
        args.words, args.same_command = words, main  # for a command that starts processes like itself
    except SystemExit as left:  # argparse has said why
        return left.code if isinstance(left.code, int) else WRONG
    return _guarded(args)


def _guarded(args: argparse.Namespace) -> int:
    try:
        code: int = args.command_run(args)
        sys.stdout.flush()
        return code
    except CascadeError as error:
        return _say(str(error), WRONG)
    except (KeyboardInterrupt, Interrupted):
        return _say("stopped; running the same command again continues", STOPPED)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if getattr(args, "traceback", False) or os.environ.get("CASCADE_TRAIN_TRACEBACK"):
            raise
        kind = type(error).__name__
        return _say(f"unexpected {kind}: {error}. Set CASCADE_TRAIN_TRACEBACK=1 to see where it came from", 1)


def _say(text: str, code: int) -> int:
    print(f"cascade-train: {plain(text)}", file=sys.stderr)
    return code


def available() -> list[str]:
    """The commands that this installation has."""
    return [name for name in COMMANDS if importlib.util.find_spec(_path(name))]


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """The parser for ``wanted`` alone, or with every command when it is None or unknown."""
    parser = argparse.ArgumentParser(
        prog="cascade-train",
        description="Train Stable Cascade by wiring nodes, and run the same graph headless.",
    )
    parser.add_argument("--version", action="version", version=f"cascade-train {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    names = available()
    for name in [wanted] if wanted in names else names:
        module = _module(name)
        command = subparsers.add_parser(name, help=module.HELP, description=_sentence(module.HELP))
        module.add_arguments(command)
        command.set_defaults(command_run=module.run)
    return parser


def _module(name: str | None) -> ModuleType:
    return importlib.import_module(_path(str(name)))


def _path(name: str) -> str:
    return f"cascade_train.commands.{name.replace('-', '_')}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


if __name__ == "__main__":
    command()
