"""Running and evaluating solutions, from a request to FIB traces.

    RunRequest  what the command line asks for                           request.py
    Plan        a Part for each definition, with a Task for each         planning.py, plan.py
                workload: the solutions to run on it
    Finding     what is found about one solution on one workload         isolation/, fib.py
    Outcome     of a task: each solution's Trace, and why it failed      evaluate.py

here.py yields the outcomes of this machine, on_ray.py those of a cluster.

On a CPU solutions run in processes of isolation/, and their outputs are compared outside. On a GPU
our own run in FIB's worker process (fib.py), and second_look.py looks at one more output in
isolation/. Third-party solutions, those that a user gives as FIB's JSON files, run in isolation/
there, too.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
