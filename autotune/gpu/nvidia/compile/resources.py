"""What one configuration needs of a GPU, as compiled, beside what was estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.errors import MissingDependencyError
from autotune.core.limits import CudaLimits
from autotune.families.gpu.launch import architecture_of
from autotune.families.gpu.occupancy import blocks_per_multiprocessor
from autotune.gpu.nvidia.compile.compiling import compile_source
from autotune.gpu.nvidia.compile.gate import gate
from autotune.serving.reports import Resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Configuration, Value
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem


def resources(
    family: KernelFamily,
    source: Source,
    configuration: Configuration,
    problem: Problem,
    device: Device,
) -> Resources:
    """What the binary says, in numbers and in one line; or why there is none.

    Raises:
        CompileError: the compiler refuses the source.
    """
    limits = device.limits
    assert isinstance(limits, CudaLimits)
    assert family.launch is not None  # its target's families have one
    try:
        architecture = architecture_of(family, limits.architecture)
        binary = compile_source(source, family.name, architecture)
    except MissingDependencyError as error:
        return Resources(None, str(error))
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
    estimated = {name: known[name] for name in family.derived}
    return Resources(document, _summary(estimated, document, device))


def _summary(estimated: Mapping[str, Value], binary: Mapping[str, Any], device: Device) -> str:
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
