"""What a run was, on one page: curves, flips, firing rates, memory, confusions, and the commands that made it."""

from bsnn.report.page import Confusion, RunRecord, page
from bsnn.report.record import read_run, write_report

__all__ = ["Confusion", "RunRecord", "page", "read_run", "write_report"]
