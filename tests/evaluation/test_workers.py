"""FIB's worker processes and Ctrl-C; no GPU is needed for what this repository adds."""

import multiprocessing
import re
import signal
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from unittest import mock

import pytest
from harness.evaluation import workers


def test_ctrl_c_drops_the_solutions_that_have_not_begun():
    """A user would miss: Ctrl-C that takes effect when every other solution of the workload has run."""
    with pytest.raises(KeyboardInterrupt):
        with workers.Pool(1) as pool:
            begun, *others = [pool.submit(time.sleep, 0.2) for _ in range(3)]
            while not begun.running():
                time.sleep(0.01)
            raise KeyboardInterrupt
    assert begun.done() and all(other.cancelled() for other in others)


def test_a_worker_takes_no_ctrl_c():
    """A user would miss: one line, and not a worker's traceback among it."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    with mock.patch.object(SpawnProcess, "_Popen", staticmethod(workers.start_without_interrupt)):
        process.start()
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.terminate()
    blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1 and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
