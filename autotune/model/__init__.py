"""How long programs take on problems nobody has timed, learned for each device."""

from autotune.model.building import Built, Timed, build, places_of
from autotune.model.choosing import Candidate, Choice, Chooser
from autotune.model.portfolio import LARGEST, Entry, Portfolio
from autotune.model.terms import TERMS, Sizes
from autotune.model.units import unit_of, variants

__all__ = [
    "LARGEST",
    "TERMS",
    "Built",
    "Candidate",
    "Choice",
    "Chooser",
    "Entry",
    "Portfolio",
    "Sizes",
    "Timed",
    "build",
    "places_of",
    "unit_of",
    "variants",
]
