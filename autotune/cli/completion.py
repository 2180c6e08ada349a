"""``autotune completion``: the script that has a shell complete commands, options and values."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from autotune.cli.parser import CommandResult, common
from autotune.core.errors import MissingDependencyError

SHELLS = ("bash", "zsh", "fish")

Completer = Callable[..., Iterable[str]]
"""Called with `parsed_args`, all that the line says so far, and `prefix`."""

_RUNNING = ("tune", "bench", "sweep")
"""Commands that run kernels on this machine."""

_SAMPLERS = ("auto", "tpe", "gp", "cmaes", "nsga2", "random", "exhaustive")


def script(shell: str) -> str:
    """The script that has a shell complete the command.

    Args:
        shell: one of `SHELLS`.

    Raises:
        ImportError: argcomplete is not installed.
    """
    from argcomplete.shell_integration import shellcode

    text: str = shellcode(["autotune"], shell=shell)
    return text.strip()


def command_of(line: str) -> str:
    """The command that a line is of; empty where none has been typed yet."""
    from autotune.cli.parser import normalized

    words = normalized(line.split()[1:])
    return words[0] if words and not words[0].startswith("-") else ""


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and exit.

    Raises:
        ImportError: argcomplete is not installed.
    """
    import argcomplete
    from argcomplete.completers import FilesCompleter, SuppressCompleter

    _attach(parser, FilesCompleter())
    argcomplete.autocomplete(
        parser,
        always_complete_options=False,
        exit_method=sys.exit,
        default_completer=SuppressCompleter(),
    )


def _attach(parser: argparse.ArgumentParser, files: Completer) -> None:
    """Give every option and argument the completer of its values."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _attach(each, files)
        elif (completer := _completer_of(action, files)) is not None:
            action.completer = completer  # type: ignore[attr-defined]


def _completer_of(action: argparse.Action, files: Completer) -> Completer | None:
    if action.type is Path or action.dest in ("cache", "file"):
        return files
    if action.dest == "studies":  # or files
        return lambda **given: [*_studies(**given), *files(**given)]
    return _COMPLETERS.get(action.dest) or _choices_of(action.dest)


def _choices_of(name: str) -> Completer | None:
    """The values of an option that a target has."""
    from autotune.targets.registry import all_options

    choices = [each for _, option in all_options().get(name, ()) for each in option.choices]
    return (lambda **_: choices) if choices else None


def _targets(**_: object) -> Iterable[str]:
    from autotune.targets.registry import target_names

    return target_names()


def _families(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """By the names of their files, which takes no time; where kernels run, the target's alone."""
    from autotune.core.paths import data_dir

    target = getattr(parsed_args, "target", None) or "*"
    if target == "*" and parsed_args.command in _RUNNING:
        from autotune.cli.scope import choose_target

        target = choose_target(parsed_args)
    operation = getattr(parsed_args, "operation", None) or "gemm"
    files = [*data_dir("search_spaces").glob(f"{operation}/{target}/*.toml")]
    own = os.environ.get("AUTOTUNE_FAMILIES", "").split(os.pathsep)
    for folder in (*getattr(parsed_args, "families", ()), *map(Path, filter(None, own))):
        files += folder.rglob("*.toml")
    return {file.stem for file in files} - {"operation"}


def _studies(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """Names of the studies in the cache, or in the database that is named."""
    from autotune.search.reading import journal_names, study_names

    storage = getattr(parsed_args, "storage", None)
    if storage is not None:
        return study_names(storage)
    from autotune.core.paths import CacheLocations

    return journal_names(CacheLocations.at(getattr(parsed_args, "cache", None)).studies)


def _parameters(parsed_args: argparse.Namespace, prefix: str, **_: object) -> Iterable[str]:
    """``NAME=`` for the parameters of the family, and ``NAME=VALUE`` for the one being set."""
    from autotune.targets.families import find_families

    name, given, _value = prefix.partition("=")
    found = {
        each.name: each.values
        for one in find_families(parsed_args.families)
        if one.name == parsed_args.family
        for each in one.parameters
    }
    if not given:
        return [f"{each}=" for each in found]
    return [f"{name}={value}" for value in found.get(name, ())]


def _presets(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """Those of `tune`, or those of the family that `emit` is to print."""
    if parsed_args.command != "emit":
        from autotune.surveying.presets import tuning_presets

        return tuning_presets()
    from autotune.targets.families import find_families

    name = parsed_args.family
    return {each for one in find_families() if one.name == name for each in one.presets}


def _devices(**_: object) -> Iterable[str]:
    from autotune.targets.registry import target_classes

    return {name for target in target_classes() for name in target.doctor.described_devices()}


def _records(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """The ids of stored records, and where they do not have to be, of shipped ones."""
    from autotune.cli.records import shipped, user_cache

    ids = [id_ for id_, _ in user_cache(getattr(parsed_args, "cache", None)).documents()]
    return ids or [record.id for record in shipped()]


def _dtypes(**_: object) -> Iterable[str]:
    from autotune.core.dtypes import DTYPES

    return DTYPES


def _accuracies(**_: object) -> Iterable[str]:
    from autotune.operations.problem import ACCURACIES

    return ACCURACIES


def _layouts(**_: object) -> Iterable[str]:
    from autotune.operations.problem import LAYOUTS

    return LAYOUTS


def _operations(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    from autotune.targets.families import find_families

    return {family.operation for family in find_families(parsed_args.families)}


_COMPLETERS: Mapping[str, Completer] = {
    "accuracy": _accuracies,
    "device": _devices,
    "dtype": _dtypes,
    "family": _families,
    "id": _records,
    "layout": _layouts,
    "operation": _operations,
    "out_dtype": _dtypes,
    "preset": _presets,
    "record": _records,
    "sampler": lambda **_: _SAMPLERS,
    "set": _parameters,
    "study": _studies,
    "target": _targets,
}
"""By what an option or argument is stored as."""


_INSTALL = {
    "bash": 'add to ~/.bashrc: eval "$(autotune completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit: eval "$(autotune completion zsh)"',
    "fish": "once: autotune completion fish > ~/.config/fish/completions/autotune.fish",
}


def add_completion(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
