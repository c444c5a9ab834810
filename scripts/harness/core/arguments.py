"""Types of command line arguments that several commands have."""

import argparse
from collections.abc import Callable


def count(least: int = 1) -> Callable[[str], int]:
    """A whole number, `least` or more; argparse reports anything else in one line."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text!r}, want a whole number, {least} or more")
        return int(text)

    return parse
