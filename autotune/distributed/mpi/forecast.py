"""The process grids that a model of communication favours, for ``autotune space``.

Messages and local products are measured once on this machine, and kept beside the records.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.core.device import Device
from autotune.core.errors import AutotuneError, CacheError
from autotune.core.limits import MpiLimits
from autotune.core.paths import CacheLocations
from autotune.core.reading import read_regular
from autotune.cpu.target import CpuTarget
from autotune.distributed.mpi.cost_model import NOMINAL, Machine, best_grids, least_words
from autotune.distributed.mpi.messages import Network
from autotune.operations.problem import Gemm, Problem, only_gemm
from autotune.serving.lookup import look_up
from autotune.serving.reports import Forecast
from autotune.store import MatchQuality

_FILE = "networks.json"
_LARGEST = 1 << 20
_TIMEOUT_S = 60.0

_OF_RANKS = ("ranks", "nodes", "cores", "operands")
"""Fields of the fingerprint that do not change the cost of a message between two ranks."""


def predicted_grids(problem: Problem, device: Device, cache: str | None = None) -> Forecast | None:
    """The best grids by the model, best first; None for a device that is no ranks on CPUs."""
    limits = device.limits
    if not isinstance(limits, MpiLimits) or limits.gpus:
        return None
    known = known_machine(only_gemm(problem, "target mpi"), device, cache)
    machine = known.machine
    m, n, k = problem.shape
    least = least_words(m, n, k, limits.ranks) * problem.itemsize
    grids: list[dict[str, Any]] = [
        {
            "grid": [grid.rows, grid.columns, grid.reduction],
            "bytes": cost.words * problem.itemsize,
            "least_bytes": round(least),
            "messages": cost.messages,
            "predicted_s": cost.seconds(machine, problem.itemsize),
            "sources": {"messages": known.network_source, "flops": known.rate_source},
        }
        for grid, cost in best_grids(m, n, k, limits.ranks, machine, problem.itemsize)
    ]
    cells = [
        (
            "x".join(map(str, row["grid"])),
            f"{row['bytes'] / 1e6:.3f}",
            f"{row['least_bytes'] / 1e6:.3f}",
            str(row["messages"]),
            f"{row['predicted_s'] * 1e3:.3f}",
        )
        for row in grids
    ]
    return Forecast(
        name="grids",
        rows=tuple(grids),
        text=(
            "grids (rows x columns x reduction) by the model, for distributed operands and a core "
            f"for every rank:\n  messages: {machine.latency_s * 1e6:.3g} us, "
            f"{1e-9 / machine.seconds_per_byte:.3g} GB/s, {known.network_source}\n"
            f"  products: {machine.flops_per_s / 1e9:.3g} GFLOP/s a rank, {known.rate_source}"
        ),
        header=("grid", "MB received", "least MB", "messages", "ms"),
        cells=tuple(cells),
    )


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """A machine for the cost model, and the sources of its figures."""

    machine: Machine
    network_source: str
    rate_source: str


def known_machine(
    problem: Gemm, device: Device, cache: str | os.PathLike[str] | None = None
) -> KnownMachine:
    """This machine's figures, for predictions of a problem on more ranks than it may have.

    Messages between two ranks here are timed the first time that somebody asks, and kept with the
    MPI library's name; where MPI is missing, figures are nominal. A rank multiplies as fast as the
    CPU record of one thread that is nearest to its share of the problem, each rank on a core of
    its own.

    Args:
        problem: what all ranks compute together.
        device: the ranks, as `MpiTarget.device` gives them; none are running.
        cache: the user's cache.

    Raises:
        CacheError: the cache cannot be read or written.
    """
    place = CacheLocations.at(cache)
    network, network_source = _network(device, place.root / _FILE)
    rate, rate_source = _rate(problem, device.limits.names()["ranks"], place.database)
    machine = replace(NOMINAL, flops_per_s=rate)
    if network is not None:
        machine = Machine(network.latency_s, network.seconds_per_byte, rate)
    return KnownMachine(machine, network_source, rate_source)


def _network(device: Device, file: Path) -> tuple[Network | None, str]:
    """The cost of a message between two ranks here, and its source."""
    from autotune.distributed.mpi.messages import MeasureNetwork, Network
    from autotune.distributed.mpi.ranks.world import World

    fields = device.fingerprint.fields
    library = device.toolchain.get("mpi", str(fields["mpi"]))
    source = f"measured between two ranks here, {library}"
    # The processor and what carries the messages.
    same = {name: value for name, value in fields.items() if name not in _OF_RANKS}
    key = json.dumps([same, library], sort_keys=True)
    kept = _read(file)
    if key in kept:
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            found = Network(**{name: float(value) for name, value in kept[key].items()})
            if all(math.isfinite(value) and value > 0 for value in asdict(found).values()):
                return found, source
    try:
        with World(2) as world:
            network = world.call(MeasureNetwork(), _TIMEOUT_S)
    except AutotuneError as error:
        return None, f"nominal ({error})"
    if not isinstance(network, Network) or min(asdict(network).values()) <= 0:
        return None, "nominal (messages could not be timed)"
    CacheLocations.at(file.parent).create()
    _write(file, {**kept, key: asdict(network)})
    return network, source


def _read(file: Path) -> dict[str, Any]:
    """Earlier measurements; none where the file is missing or is no such file."""
    try:
        found = json.loads(read_regular(file, _LARGEST))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, content: dict[str, Any]) -> None:
    """Replace the file at once: others may be reading it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, suffix=".tmp", encoding="utf-8", delete=False
        ) as written:
            json.dump(content, written, indent=1, sort_keys=True)
        Path(written.name).replace(file)
    except OSError as error:
        raise CacheError(
            f"cannot write {file} ({error.strerror or error}): give a writable folder with "
            "--cache or AUTOTUNE_CACHE"
        ) from error


def _rate(problem: Gemm, ranks: int, database: Path) -> tuple[float, str]:
    """Operations a second of a rank's product, and their source."""
    # A rank's share, were it a cube of the problem's proportions.
    shrink = ranks ** (1 / 3)
    m, n, k = (max(1, round(size / shrink)) for size in (problem.m, problem.n, problem.k))
    share = replace(problem, m=m, n=n, k=k, threads=1)
    looked_up = look_up(share, CpuTarget(), match="nearest", cache=database)
    if (predicted := looked_up.prediction) is not None:
        return share.flops / predicted.seconds, f"of one thread: {predicted.reason}"
    found = looked_up.match
    if found.record is None or found.quality > MatchQuality.NEAREST:
        return NOMINAL.flops_per_s, "nominal (no CPU record of one thread is near)"
    sizes = "x".join(str(found.record.problem[name]) for name in "mnk")
    return found.record.gflops * 1e9, f"of the CPU record for {sizes}, one thread"
