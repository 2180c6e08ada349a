"""The cost model: times of programs on problems nobody has timed, learned for each device."""

from autotune.model.book import Built, PriceBook, Program, Timed, build
from autotune.model.choosing import Calls, Choice, Chooser, with_calls
from autotune.model.portfolio import (
    LARGEST,
    PLAIN,
    Entry,
    Key,
    Portfolio,
    Units,
    check_entry,
    chip_of,
    is_modelled,
    on_all_threads,
    program_of,
    threads_of,
)
from autotune.model.prices import Expectation, expected_log_time, with_copies
from autotune.model.terms import TERMS, Sizes, Unit

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
    "is_modelled",
    "on_all_threads",
    "program_of",
    "threads_of",
    "with_calls",
    "with_copies",
]
