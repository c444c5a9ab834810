"""Words for a name that is not known."""

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str], listed: str | None = None) -> str:
    """One line: the known name that is most like it, else all of them (or `listed`, a text that
    says what there is).
    """
    known = [str(each) for each in known]
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = (
        f"did you mean {close[0]}?"
        if close
        else f"there are: {listed or ', '.join(known) or 'none'}"
    )
    return f"unknown {what} {name!r}; {hint}"
