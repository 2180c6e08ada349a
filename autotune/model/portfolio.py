"""A portfolio: the programs that serve every shape on a device, and what each shape takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta

from autotune.core.checks import AnyLine, Line, Sha256, Texts, Whole
from autotune.core.configuration import Configuration
from autotune.core.device import DeviceFingerprint
from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.families.family import KernelFamily
from autotune.model.units import free_parameters

LARGEST = 64
"""Programs that a portfolio has at most, of all layouts together."""

PLAIN = "nn"
"""The layout that others are taken to be like, where nothing else is known of them."""

# Prices are nanoseconds as a rule. Above such bounds a sum of them is no finite time.
Price: TypeAlias = Annotated[float, Meta(ge=0, le=1.0)]
Spread: TypeAlias = Annotated[float, Meta(ge=0, le=10.0)]
Loss: TypeAlias = Annotated[float, Meta(ge=0, le=1e3)]
Products: TypeAlias = Annotated[float, Meta(ge=0, le=1e60)]
Resident: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 16)]
Threads: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a program.

    Attributes:
        family: its family's name.
        layout: how operands are stored.
        configuration: with the lowest values of its free parameters.
    """

    family: str
    layout: str
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Entry:
    """One program of a portfolio.

    Attributes:
        family: its family.
        family_digest: the family's, when it was measured: of another one nothing is known.
        layout: how its operands are stored.
        configuration: with any values for the parameters that `free` names.
        free: the parameters that are chosen with the sizes: those that are passed at the call and
            that the model knows the effect of.
        calls: values of those, in their order, of the calls that are the best somewhere; empty for
            all there are.
        resident: units that a multiprocessor holds at a time, by the binary's own resources.
        prices: seconds per term, in the order of `autotune.model.terms.TERMS`.
        spread: standard deviation of the logarithm of measured over predicted times.
        measured: times that the prices were fitted to.
        largest: products, M N K, of the largest problem among them; 0 where that is not known.
        binary: SHA-256 of the binary; None where none is kept.
        support: SHA-256 of the kernel that copies operands for it; None where nothing is copied.
    """

    family: Line
    family_digest: Line
    layout: Line
    configuration: Configuration
    free: tuple[Line, ...]
    calls: tuple[tuple[Whole, ...], ...]
    resident: Resident
    prices: tuple[Price, ...]
    spread: Spread
    measured: Whole
    largest: Products = 0.0
    binary: Sha256 | None = None
    support: Sha256 | None = None

    @property
    def key(self) -> Key:
        """The program's key."""
        return Key(self.family, self.layout, self.configuration)


@dataclass(frozen=True, slots=True)
class Portfolio:
    """The programs for one dtype on one device.

    Attributes:
        operation: what they compute.
        target: where they run.
        fingerprint: of the device.
        dtype: element type of the operands.
        out_dtype: element type of the results.
        accuracy: class of the results.
        threads: the cap that they were measured under; None for all there are.
        architecture: what the binaries run on: "sm_90"; empty where none are kept.
        toolchain: what they were compiled and run with.
        entries: the programs.
        families: prices per volume of each family that was measured, by its name: what is
            expected of programs that were not.
        shapes: problems that they were measured on.
        loss: how much slower the best of them is than the best of all that was measured, as a
            geometric mean over those problems: 0.03 is 3%.
        created: when, in UTC.
    """

    operation: Line
    target: Line
    fingerprint: DeviceFingerprint
    dtype: Line
    out_dtype: Line
    accuracy: Line
    threads: Threads | None
    architecture: AnyLine
    toolchain: Texts
    entries: tuple[Entry, ...]
    families: Mapping[Line, tuple[Price, ...]]
    shapes: Whole
    loss: Loss
    created: Line


def check_entry(entry: Entry, family: KernelFamily) -> None:
    """Make sure that a program, which may be a stranger's, is one of a family.

    Raises:
        SpaceError: its configuration, or one of its calls, is none of the family's, or others of
            the family's parameters are free.
    """
    family.conform(entry.configuration)
    free = free_parameters(family)
    if entry.free != free:
        raise SpaceError(
            f"free parameters of family {family.name!r} are {', '.join(free) or 'none'}, got "
            f"{shown(list(entry.free))}"
        )
    known = {each.name: each for each in family.parameters}
    for call in entry.calls:
        if any(
            known[name].position(value) is None for name, value in zip(free, call, strict=True)
        ):
            raise SpaceError(f"family {family.name!r} has no call with {shown(list(call))}")
