"""The store: tuning records, the cache that holds them, lookups, and files to exchange them."""

from autotune.store.binary import BinaryRecord
from autotune.store.cache import TuningCache
from autotune.store.files import read_portfolios, shipped_binary, shipped_records
from autotune.store.interchange import (
    Stored,
    document_of,
    export_lines,
    export_records,
    import_records,
    parse_line,
)
from autotune.store.matching import (
    Match,
    MatchQuality,
    find,
    is_current,
    neighbours,
    problem_sizes,
    size_distance,
)
from autotune.store.measured import MeasuredProblem, StoredMeasurement
from autotune.store.portfolio import PortfolioHead, decoded, read_portfolio
from autotune.store.ranking import preference, superseded
from autotune.store.record import BaselineRecord, EffortRecord, SustainedRecord, TuningRecord
from autotune.store.sources import RecordSource, pools, record_sources

__all__ = [
    "BaselineRecord",
    "BinaryRecord",
    "EffortRecord",
    "Match",
    "MatchQuality",
    "MeasuredProblem",
    "PortfolioHead",
    "RecordSource",
    "Stored",
    "StoredMeasurement",
    "SustainedRecord",
    "TuningCache",
    "TuningRecord",
    "decoded",
    "document_of",
    "export_lines",
    "export_records",
    "find",
    "import_records",
    "is_current",
    "neighbours",
    "parse_line",
    "pools",
    "preference",
    "problem_sizes",
    "read_portfolio",
    "read_portfolios",
    "record_sources",
    "shipped_binary",
    "shipped_records",
    "size_distance",
    "superseded",
]
