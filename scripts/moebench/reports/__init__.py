"""Everything a reader sees. A command or a page calls:

run_table                        `moebench run`
comparison, changes              `moebench compare`, whose --html, --csv and --json are written by
html, csv_and_json
layer_facts                      `moebench model`
served, predicted                `moebench served`, and the pages
profiles                         `moebench profile`, and the pages
models, layer_times, repeats,
engines                          the pages alone
docs/, figures/                  `moebench docs`: what is generated in the pages, and their figures

All tables are made by

table, terminal                  the one kind of table, as Markdown and in a terminal
measured_with                    what a table was measured with, in words
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
