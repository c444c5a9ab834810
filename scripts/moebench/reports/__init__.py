"""Everything a reader sees: tables in a terminal and in Markdown, generated blocks of the pages,
figures, the HTML page, and the CSV and JSON of all measurements.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
