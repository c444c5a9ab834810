"""Commands in a Markdown file, each with what it really prints.

An example is `<!-- output of: COMMAND -->`, its output, and `<!-- end of output -->`, each marker on a line of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.core import paths

EXAMPLE = re.compile(r"^<!-- output of: ([^\n]+) -->\n.*?^<!-- end of output -->$", re.DOTALL | re.MULTILINE)


def output_of(command: str) -> str:
    """What a shell prints for the command in the repository's root. Raises ValueError when it fails."""
    # The `python` of an example is the one that runs this, whatever the shell would find.
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    argv = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(argv, cwd=paths.ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise ValueError(f"example {command!r} ended with {done.returncode}: {said}")
    return done.stdout


def renewed(text: str) -> str:
    """The text with every example's output made anew. Raises ValueError when one fails, or when there is none."""
    if not EXAMPLE.search(text):
        raise ValueError("no example: want <!-- output of: COMMAND --> and <!-- end of output -->")

    def anew(match: re.Match) -> str:
        command = match[1]
        shown = f"```\n$ {command}\n{output_of(command).rstrip()}\n```"
        return f"<!-- output of: {command} -->\n\n{shown}\n\n<!-- end of output -->"

    return EXAMPLE.sub(anew, text)
