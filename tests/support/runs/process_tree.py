"""Processes that tests start, and what these start."""

import time

import psutil


def goes_on(process):
    """Whether a process runs: in a container nobody may wait for one that has ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(process, count):
    """Return the descendants of a Popen, once it has so many. Raises AssertionError after a
    minute.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        started = psutil.Process(process.pid).children(recursive=True)
        if len(started) >= count:
            return started
        assert process.poll() is None
        time.sleep(0.05)
    raise AssertionError("it starts nothing")
