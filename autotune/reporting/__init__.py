"""Reports: what studies and sweeps have measured, as one page for a browser, or as a picture."""

from autotune.reporting.finding import Finder, is_file
from autotune.reporting.page import check_picture, write_page, write_picture
from autotune.reporting.study import Study, Trial

__all__ = ["Finder", "Study", "Trial", "check_picture", "is_file", "write_page", "write_picture"]
