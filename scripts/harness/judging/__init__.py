"""Running and judging solutions: `for cell in plan: judge -> record -> show`, in commands/run.py.

A run is planned in plan.py, of what selection.py finds on a device. A cell is judged in judge.py: through fib.py, all
that is private of FlashInfer-Bench, on a GPU, through isolated.py on a CPU, or by actors of on_ray.py. tolerances.py
has the tolerances; diagnosis.py and frames.py say what is wrong. Traces are recorded by results/trace_files.py and
shown by report/run_table.py.
"""

from harness.core import interpreter  # noqa: F401
