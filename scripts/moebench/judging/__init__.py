"""Running and judging solutions: `for cell in plan: judge -> record -> show`, in commands/run.py.

judge.py judges a cell through fib.py on a GPU, through isolated.py on a CPU, or by actors of
on_ray.py.
"""

from moebench.core import interpreter  # noqa: F401
