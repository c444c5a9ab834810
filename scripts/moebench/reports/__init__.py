"""Everything a reader sees, by what shows it:

run_table                            `moebench run`
comparison, by_workload, changes     `moebench compare`; files and html are what it writes
layer_facts, servings                `moebench model`
served, predicted                    `moebench served`, and the pages
profiles                             `moebench profile`, and the pages
models, layer_times                  the pages alone
docs/, figures/                      what is generated in the pages
table, terminal                      the one kind of table, as Markdown and in a terminal
measured_with                        what a table was measured with, in words
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
