"""Signatures of another project's functions, from what was recorded of a release."""

import ast
import inspect
import json
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "samples"


def recorded(file_name):
    """Return release -> function -> [name, kind, default as text or null] of each parameter."""
    return json.loads((SAMPLES / file_name).read_text())


def signature_of(parameters):
    """Return the inspect.Signature of recorded parameters."""
    signature = []
    for name, kind, default in parameters:
        kind = getattr(inspect.Parameter, kind)
        signature.append(inspect.Parameter(name, kind, default=default_of(default)))
    return inspect.Signature(signature)


def default_of(text):
    """Return a default value, as text where it is no literal; inspect's `empty` where there is
    none.
    """
    if text is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
