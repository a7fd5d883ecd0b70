"""Figures as SVG, and one self-contained HTML page of one or more runs.

`record` reads run directories, `page` makes the page, `figures` draws. May import: paper, train and what is below them.
"""

from bsnn.report.page import Confusion as Confusion, RunRecord as RunRecord, page as page
from bsnn.report.record import read_run as read_run, write_report as write_report
