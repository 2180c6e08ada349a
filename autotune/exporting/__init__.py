"""Exporting: a record's kernel as a folder of files, for programs without this package."""

from autotune.exporting.gathering import device_of, exportable, family_of
from autotune.exporting.writing import check_folder, write_folder

__all__ = ["check_folder", "device_of", "exportable", "family_of", "write_folder"]
