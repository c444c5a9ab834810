"""Running and evaluating solutions: request.py -> planning.py -> plan.py, and for each task of it
evaluate.py, in commands/run.py's loop: evaluate -> record -> show.

evaluate.py goes through isolation/ on a CPU, and on a GPU for third-party solutions; through fib.py
on a GPU for ours, at which second_look.py looks again; or, by actors of on_ray.py, on other hosts.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
