"""The cost model: times of programs on problems nobody has timed, learned for each device."""

from autotune.model.book import PriceBook, Program, Timed, with_copies
from autotune.model.building import Built, build
from autotune.model.choosing import Calls, Choice, Chooser
from autotune.model.expecting import Expectation, expected_log_time
from autotune.model.portfolio import LARGEST, PLAIN, Entry, Key, Portfolio, check_entry
from autotune.model.pruning import with_calls
from autotune.model.terms import TERMS, Sizes, Unit
from autotune.model.units import (
    Units,
    chip_of,
    free_parameters,
    is_modelled,
    on_all_threads,
    program_of,
    threads_of,
)

__all__ = [
    "LARGEST",
    "PLAIN",
    "TERMS",
    "Built",
    "Calls",
    "Choice",
    "Chooser",
    "Entry",
    "Expectation",
    "Key",
    "Portfolio",
    "PriceBook",
    "Program",
    "Sizes",
    "Timed",
    "Unit",
    "Units",
    "build",
    "check_entry",
    "chip_of",
    "expected_log_time",
    "free_parameters",
    "is_modelled",
    "on_all_threads",
    "program_of",
    "threads_of",
    "with_calls",
    "with_copies",
]
