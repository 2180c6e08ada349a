"""What one configuration needs of a device: estimated, and as compiled where that is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.errors import MissingDependencyError
from autotune.core.limits import CudaLimits
from autotune.families.occupancy import blocks_per_multiprocessor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Configuration, Value
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem


def estimates(
    family: KernelFamily, configuration: Configuration, problem: Problem, device: Device
) -> dict[str, Value]:
    """The derived quantities of a configuration: footprints, threads, registers."""
    known = family.values(configuration, problem, device.limits)
    return {name: known[name] for name in family.derived}


def compiled(
    family: KernelFamily,
    source: Source,
    configuration: Configuration,
    problem: Problem,
    device: Device,
) -> tuple[dict[str, Any] | None, str]:
    """What the binary says, for families that run on a GPU.

    Returns:
        The binary's numbers and an empty text; or None and one line saying why there are none.

    Raises:
        CompileError: the compiler refuses the source.
    """
    limits = device.limits
    if not isinstance(limits, CudaLimits) or family.launch is None:
        return None, f"families for {family.target} are compiled when they are run"
    from autotune.targets.cuda.compile.compiling import compile_source
    from autotune.targets.cuda.compile.gate import gate

    try:
        binary = compile_source(source, family.name, limits.architecture)
    except MissingDependencyError as error:
        return None, str(error)
    known = family.values(configuration, problem, limits)
    threads = int(known["threads"])
    dynamic = int(family.launch.shared_bytes.evaluate(known))
    main = binary.kernels[family.operation]
    rejection = gate(
        binary,
        limits,
        threads=threads,
        dynamic_shared_bytes=dynamic,
        kernel=family.operation,
        resident_blocks=int(family.launch.resident_blocks.evaluate(known)),
    )
    document = {
        "architecture": binary.architecture,
        "threads": threads,
        "registers": main.registers,
        "spill_bytes": binary.spill_bytes.get(family.operation, 0),
        "local_bytes": main.local_bytes,
        "shared_bytes": main.shared_bytes + dynamic,
        "blocks_per_multiprocessor": blocks_per_multiprocessor(
            limits,
            threads=threads,
            registers=main.registers,
            shared_bytes=main.shared_bytes + dynamic,
        ),
        "other_kernels": {
            name: {"registers": kernel.registers, "local_bytes": kernel.local_bytes}
            for name, kernel in binary.kernels.items()
            if name != family.operation
        },
        "rejection": None if rejection is None else str(rejection),
        "compile_s": round(binary.seconds, 6),
    }
    return document, ""


def summary(estimated: Mapping[str, Value], binary: Mapping[str, Any], device: Device) -> str:
    """Estimate and truth in one line."""

    def pair(name: str, unit: str = "") -> str:
        guess = estimated.get(name)
        said = "" if guess is None or guess == binary[name] else f" (estimated {guess})"
        return f"{binary[name]}{unit}{said}"

    text = (
        f"{device.fingerprint.name}: {pair('registers')} registers per thread, "
        f"{binary['spill_bytes']} bytes spilled, {binary['local_bytes']} bytes local, "
        f"{pair('shared_bytes')} bytes shared, {binary['threads']} threads per block, "
        f"{binary['blocks_per_multiprocessor']} blocks per multiprocessor"
    )
    return text if binary["rejection"] is None else f"{text}; not run: {binary['rejection']}"
