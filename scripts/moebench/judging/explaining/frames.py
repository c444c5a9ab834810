"""Find in a solution's log the error, and the place in the solution's sources that raised it.

evaluate.py puts both into the reasons of a failure.

The log of a process that ran it may end with a traceback of Python's, with the stacks that
faulthandler writes at a time-out, or with a compiler's errors. Of each two lines are made:

    ["ValueError: got 3 scales, want 4", "at solutions/mine/main.py:17 in scale"]
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from moebench.core.errors import shortened

# a file of a solution as FIB unpacks it
UNPACKED = re.compile(r'(?<=File ")(?P<folder>/[^"]*/fib_\w+)/(?P<file>[^"]+)(?=")')
# Python's frames, and faulthandler's, which have no comma before the function
FRAME = re.compile(
    r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>\S+))?',
    re.MULTILINE,
)
CAUSED = "\nThe above exception was the direct cause of the following exception:\n"
UNRELATED = "\nDuring handling of the above exception, another exception occurred:\n"
TIMED_OUT = "Timeout ("  # before the stacks that faulthandler writes
COMPILER = re.compile(
    r"^(?P<file>(?:.*/)?[\w.]+\.(?:cuh?|cpp|h))[(:](?P<line>\d+)\)?.*?\berror\b.*",
    re.MULTILINE,
)
ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?$")

Origins = Mapping[str, PurePosixPath]  # path in a packed solution -> path that is shown


def with_shown_paths(log: str, origins: Origins) -> str:
    """Return a log in which the files that FIB has unpacked have the paths that are shown."""

    def shown_path(match: re.Match) -> str:
        return str(origins.get(match["file"], match[0]))

    return UNPACKED.sub(shown_path, log)


def error_lines(log: str, origins: Origins) -> list[str]:
    """Return a line with the error, and if it was raised below the solution's own files a line
    'at FILE:LINE in FUNCTION' of the innermost frame in these.

    log: after `with_shown_paths`. What a compiler says of the solution's sources counts first, then
    of a chain of errors, each raised because of the one before, the first that has such a frame.
    """
    by_compiler = compiler_error(log, origins)
    if by_compiler:
        return by_compiler

    _, _, last = log.strip().rpartition(UNRELATED)
    chain = last.split(CAUSED)
    for traceback in chain:
        frames = frames_of_solution(traceback, origins)
        if frames:
            return [shortened(error_of(traceback)), place(frames[-1])]
    return [shortened(error_of(chain[-1]))]


def hang_lines(log: str, origins: Origins) -> list[str]:
    """Return a line 'at FILE:LINE in FUNCTION' with where a solution was at a time-out; none if
    that was not below its own files.

    log: after `with_shown_paths`, with faulthandler's stacks, whose innermost frames come first.
    """
    if TIMED_OUT not in log:
        return []
    stacks = log.rpartition(TIMED_OUT)[2]
    frames = frames_of_solution(stacks, origins)
    return [place(frames[0])] if frames else []


def frames_of_solution(traceback: str, origins: Origins) -> list[re.Match]:
    """Return the frames that are in the solution's own files."""
    paths = {str(path) for path in origins.values()}
    return [frame for frame in FRAME.finditer(traceback) if frame["file"] in paths]


def place(frame: re.Match) -> str:
    function = f" in {frame['function']}" if frame["function"] else ""
    return f"at {frame['file']}:{frame['line']}{function}"


def compiler_error(log: str, origins: Origins) -> list[str] | None:
    """Return a compiler's first error about one of these sources, and 'at FILE:LINE', or None."""
    for match in COMPILER.finditer(log):
        shown = f"/{match['file']}"
        packed_paths = [path for path in origins if shown.endswith(f"/{path}")]
        if packed_paths:
            origin = origins[max(packed_paths, key=len)]
            _, _, message = match[0].rpartition("/")
            return [message, f"at {origin}:{match['line']}"]
    return None


def error_of(traceback: str) -> str:
    """Return 'ValueError: what is wrong', the error that follows a traceback's last frame.

    Triton's CompilationError has the place first: of it the first and the last line are joined.
    """
    after_frames = traceback
    for frame in FRAME.finditer(traceback):
        after_frames = traceback[frame.end() :]
    lines = [line.strip() for line in after_frames.splitlines() if line.strip()]
    if not lines:
        return "no message"

    message = lines[-1:]
    for number, line in enumerate(lines):
        if ERROR.match(line):
            message = lines[number:]
            break
    if "CompilationError" in message[0] and len(message) > 1:
        return f"{message[0]} {message[-1]}"
    return message[0]
