"""``autotune completion``: the script that has a shell complete commands, options and values."""

from __future__ import annotations

import argparse

from autotune.cli.completion import SHELLS, script
from autotune.cli.options import common
from autotune.cli.result import CommandResult
from autotune.core.errors import MissingDependencyError

_INSTALL = {
    "bash": 'add to ~/.bashrc: eval "$(autotune completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit: eval "$(autotune completion zsh)"',
    "fish": "once: autotune completion fish > ~/.config/fish/completions/autotune.fish",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        parents=[common()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Prints the completion script for bash, zsh or fish: commands, options, and "
        "the values that they can have here.\n\n"
        + "\n".join(f"  {each}" for each in _INSTALL.values()),
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Print the script of one shell."""
    try:
        text = script(args.shell)
    except ImportError as error:
        raise MissingDependencyError(
            "completion needs argcomplete: pip install argcomplete", name="argcomplete"
        ) from error
    note = f"# {_INSTALL[args.shell]}"
    return CommandResult({"shell": args.shell, "script": text}, f"{text}\n{note}")
