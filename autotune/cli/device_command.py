"""``autotune device``: what this machine is, and what is recorded with every result."""

from __future__ import annotations

import argparse

from autotune.cli.options import CommandResult, common
from autotune.cli.targets import choose_target, read_device, target_options
from autotune.cli.terminal import Style, styled


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "device",
        parents=[common(), target_options()],
        help="show the device's fingerprint, limits, toolchain and state",
        description="Shows the fingerprint that records are keyed by, the limits that prune "
        "spaces, and the toolchain and state recorded beside every result; and every GPU that is "
        "here, whether it can be used or not.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> CommandResult:
    """Read the device, or describe one that is known by name; list the GPUs that are here."""
    from autotune.targets.registry import target_classes

    here = [found for each in target_classes() if (found := each.doctor.found()) is not None]
    device = read_device(choose_target(args), args)
    document = {
        "fingerprint": device.fingerprint.key() | {"digest": device.fingerprint.digest},
        "limits": device.limits.names(),
        "toolchain": dict(device.toolchain),
        "state": dict(device.state),
        **{found.kind.lower(): list(found.documents) for found in here},
    }
    lines = [f"{device.fingerprint.name}  ({device.fingerprint.slug})"]
    for title, fields in (
        ("fingerprint", device.fingerprint.fields),
        ("limits", device.limits.names()),
        ("toolchain", device.toolchain),
        ("state", device.state),
    ):
        if fields:
            lines.append(f"\n{styled(title, Style.BOLD)}")
            width = max(map(len, fields))
            lines.extend(f"  {name:<{width}}  {value}" for name, value in fields.items())
    for found in here:
        if found.texts:
            unused = f" (not used: {found.missing})" if found.missing else ""
            lines.append(f"\n{styled(f'{found.kind} here', Style.BOLD)}{unused}")
            lines.extend(f"  {number}  {text}" for number, text in enumerate(found.texts))
    return CommandResult(document, "\n".join(lines))
