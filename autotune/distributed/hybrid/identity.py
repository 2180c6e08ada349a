"""The GPUs of a host as one device: their identity, and what programs are pruned with."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.device import Device, DeviceFingerprint
from autotune.core.errors import InputError
from autotune.core.limits import HybridLimits
from autotune.gpu.nvidia.device import load_driver, read_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_gpus(count: int | None) -> tuple[Device, int, bool]:
    """Read the first GPUs of this host; creates no context.

    Args:
        count: how many; None takes all that this process may use.

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
    check_alike([first, *(read_gpu(each) for each in range(1, count))])
    handles = [driver.cuDeviceGet(each)[1] for each in range(count)]
    reach = all(
        driver.cuDeviceCanAccessPeer(one, other)[1]
        for one, other in itertools.permutations(handles, 2)
    )
    return first, count, reach


def check_alike(gpus: Sequence[Device]) -> None:
    """Check that one kernel can serve all GPUs.

    Raises:
        InputError: they differ; the message names two that do.
    """
    for number, gpu in enumerate(gpus):
        if gpu.fingerprint != gpus[0].fingerprint:
            raise InputError(
                f"GPUs must be alike, and 0 is {gpus[0].fingerprint.slug} and {number} is "
                f"{gpu.fingerprint.slug}: choose with CUDA_VISIBLE_DEVICES"
            )


def device_of(gpu: Device, count: int, operands: str, *, reach: bool) -> Device:
    """The device that so many GPUs are together.

    Where the operands are belongs to its identity: what is best for operands that have to travel
    is not what is best for those in place.

    Args:
        gpu: one of them; the others are like it.
        count: how many.
        operands: "host", "device" (whole on the first GPU) or "blocks" (in blocks on all).
        reach: whether each can read the memory of every other one.
    """
    return replace(
        gpu,
        fingerprint=DeviceFingerprint(
            kind="hybrid",
            name=f"{count} x {gpu.fingerprint.name}",
            fields={
                **gpu.fingerprint.fields,
                "gpus": count,
                "peers": int(reach),
                "operands": operands,
            },
        ),
        limits=HybridLimits(count, int(reach), int(operands == "host"), int(operands == "blocks")),
    )
