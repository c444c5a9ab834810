"""Running and evaluating solutions, from a request to FIB traces.

    RunRequest  what the command line asks for                           plan.py
    Plan        a Part for each definition, with a Task for each         plan.py, planning.py
                workload: the solutions to run on it
    Finding     what is found about one solution on one workload         isolation/, fib.py
    Outcome     of a task: each solution's Trace, and why it failed      evaluate.py

commands/run.py makes the request, has planning.py plan it, and takes the outcomes from
evaluate.ThisMachine or, with --ray, from on_ray.Cluster.

planning.py asks selection.py which solutions can run, dataset.py for definitions and workloads,
and device.py whether they fit into memory; tolerances.py has the three tolerances.

For a task evaluate.py gets a runner from runners.py. On a CPU solutions run in processes of
isolation/, and their outputs are compared outside. On a GPU this repository's solutions run in
FIB's worker process (fib.py), and second_look.py has isolation/ call them once more. Third-party
solutions, those that a user gives as FIB's JSON files, run in isolation/ there, too.
calling.py makes inputs and calls what FIB has built, for all of these; building.py builds
beforehand what compiles for minutes, and explaining/ says why an output is wrong.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
