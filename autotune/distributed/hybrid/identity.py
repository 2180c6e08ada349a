"""The GPUs of a host as one device: their identity, their limits, and a look at them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.core.check import Check, Status, attempt
from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import InputError
from autotune.core.limits import HybridLimits
from autotune.gpu.nvidia.device import load_driver, read_gpu
from autotune.gpu.nvidia.presence import look
from autotune.serving.examining import Apart


def read_gpus(count: int | None) -> tuple[Device, int, bool]:
    """Read the first `count` GPUs of this host, or all of them; creates no context.

    Returns:
        One of them, how many there are, and whether each can reach the memory of every other one.

    Raises:
        MissingDependencyError: cuda-bindings, the driver or a GPU is missing.
        InputError: there are fewer, or they are not alike.
    """
    first = read_gpu(0)
    driver = load_driver()
    there = int(driver.cuDeviceGetCount()[1])
    count = count or there
    if count > there:
        raise InputError(f"gpus must be at most {there}, the GPUs that are here, got {count}")
    check_alike([first, *(read_gpu(number) for number in range(1, count))])
    handles = [driver.cuDeviceGet(number)[1] for number in range(count)]
    reach = all(
        driver.cuDeviceCanAccessPeer(one, other)[1]
        for one, other in itertools.permutations(handles, 2)
    )
    return first, count, reach


def check_alike(gpus: Sequence[Device]) -> None:
    """Refuse GPUs that one kernel cannot serve, and name two that differ."""
    for number, gpu in enumerate(gpus):
        if gpu.fingerprint != gpus[0].fingerprint:
            raise InputError(
                f"GPUs must be alike, and 0 is {gpus[0].fingerprint.slug} and {number} is "
                f"{gpu.fingerprint.slug}: choose with CUDA_VISIBLE_DEVICES"
            )


def device_of(gpu: Device, count: int, operands: str, *, reach: bool) -> Device:
    """The device that several GPUs are together.

    Where the operands are belongs to its identity: what is best for operands that have to travel
    is not what is best for those in place.

    Args:
        gpu: one of them; the others are like it.
        count: number of GPUs.
        operands: "host", "device" (whole on the first GPU) or "blocks" (in blocks on all).
        reach: whether each can read the memory of every other one.
    """
    fields = {
        **gpu.fingerprint.fields,
        "gpus": count,
        "peers": int(reach),
        "operands": operands,
    }
    return replace(
        gpu,
        fingerprint=DeviceFingerprint("hybrid", f"{count} x {gpu.fingerprint.name}", fields),
        limits=HybridLimits(count, int(reach), int(operands == "host"), int(operands == "blocks")),
    )


def examine() -> Iterator[Check]:
    """Look at the GPUs together; each by itself is target cuda's."""
    with Apart() as apart:
        yield attempt("GPUs together", lambda: apart(together), Status.NOTE)


def together() -> Check:
    """Count the GPUs, and see whether they reach each other's memory."""
    if not look().usable:
        return Check.ok("GPUs together", "none that can be used")
    first, count, reach = read_gpus(None)
    found = f"{count} x {first.fingerprint.name}"
    if count > 1 and not reach:
        return Check.note("GPUs together", f"{found}; blocks travel by the host's memory")
    return Check.ok("GPUs together", found)
