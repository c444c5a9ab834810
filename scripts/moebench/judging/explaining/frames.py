"""The error of a solution that raised, and the place in its own sources, from a traceback of any
process.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from moebench.judging.calling import shortened

FILE = re.compile(
    r'(?<=File ")(?P<folder>/[^"]*/fib_\w+)/(?P<file>[^"]+)(?=")'
)  # as FIB unpacks a solution
FRAME = re.compile(
    r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>\S+))?', re.MULTILINE
)
NEXT = "\nThe above exception was the direct cause of the following exception:\n"
UNRELATED = "\nDuring handling of the above exception, another exception occurred:\n"
COMPILER = re.compile(
    r"^(?P<file>(?:.*/)?[\w.]+\.(?:cuh?|cpp|h))[(:](?P<line>\d+)\)?.*?\berror\b.*", re.MULTILINE
)
ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?$")


def with_own_paths(log: str, origins: Mapping[str, PurePosixPath]) -> str:
    """The log, in which a solution's files are named as in the repository. origins: packed path ->
    path there.
    """
    return FILE.sub(lambda match: str(origins.get(match["file"], match[0])), log)


def raised(log: str, origins: Mapping[str, PurePosixPath]) -> list[str]:
    """The error in one line, and 'at FILE:LINE in FUNCTION' of the innermost frame in the
    solution's own files.

    log: after `with_own_paths`; the first cause that those sources raised counts, or what a
    compiler printed.
    """
    paths, chain = (
        {str(path) for path in origins.values()},
        log.strip().split(UNRELATED)[-1].split(NEXT),
    )
    own = {
        part: [frame for frame in FRAME.finditer(part) if frame["file"] in paths] for part in chain
    }
    chosen = next((part for part in chain if own[part]), chain[-1])
    lines = [shortened(error_of(chosen))]
    for match in COMPILER.finditer(log):
        if path := max(
            (path for path in origins if f"/{match['file']}".endswith(f"/{path}")),
            key=len,
            default=None,
        ):
            return [match[0].rpartition("/")[2], f"at {origins[path]}:{match['line']}"]
    if own[chosen]:
        *_, last = own[chosen]
        function = f" in {last['function']}" if last["function"] else ""
        lines.append(f"at {last['file']}:{last['line']}{function}")
    return lines


def error_of(traceback: str) -> str:
    """'ValueError: what is wrong'; where Triton's compiler puts the place first, with what it says
    after it.
    """
    *_, last_frame = [0, *(frame.end() for frame in FRAME.finditer(traceback))]
    lines = traceback[last_frame:].strip().splitlines() or [""]
    at = next((n for n, line in enumerate(lines) if ERROR.match(line)), len(lines) - 1)
    message = [line.strip() for line in lines[at:] if line.strip()] or ["no message"]
    return (
        message[0]
        if len(message) == 1 or "CompilationError" not in message[0]
        else f"{message[0]} {message[-1]}"
    )


def hung(log: str, origins: Mapping[str, PurePosixPath]) -> list[str]:
    """Return 'at FILE:LINE in FUNCTION' of where a solution was at a time-out, from faulthandler's
    stack, whose innermost frame comes first; nothing if it was not in its own files.

    log: after `with_own_paths`.
    """
    paths = {str(path) for path in origins.values()}
    _, began, stack = log.rpartition("Timeout (")
    for frame in FRAME.finditer(stack if began else ""):
        if frame["file"] in paths:
            return [f"at {frame['file']}:{frame['line']} in {frame['function']}"]
    return []
