"""Which FP8 layers a solution serves, by rules in its manifest: a layer that is new needs no
solution edited.
"""

from typing import Literal

from pydantic import Field

from moebench.core.schema import Strict
from moebench.operators import catalogue

# the router inside, in two kinds, top-k given, and that with MXFP4 experts
FORMS = ("sigmoid-bias", "renorm", "routed", "mxfp4")
SIZES = (
    "num_experts",
    "num_local_experts",
    "top_k",
    "num_groups",
    "kept_groups",
    "hidden_size",
    "intermediate_size",
)


class Range(Strict):
    """The values of a size. one_of: these alone."""

    multiple_of: int = Field(1, ge=1)
    at_least: int | None = None
    at_most: int | None = None
    one_of: list[int] = []

    def takes(self, value: int) -> bool:
        above = self.at_least is None or value >= self.at_least
        below = self.at_most is None or value <= self.at_most
        return (
            value % self.multiple_of == 0
            and above
            and below
            and (not self.one_of or value in self.one_of)
        )

    def __str__(self) -> str:
        """'multiples of 128 from 512 up to 8192'."""
        if self.one_of:
            return ", ".join(map(str, self.one_of))
        parts = [f"multiples of {self.multiple_of}"] if self.multiple_of > 1 else []
        parts += [f"from {self.at_least}"] if self.at_least else []
        return " ".join(parts + ([f"up to {self.at_most}"] if self.at_most else []))


class Rule(Strict):
    """One [[serves]] of solution.toml: layers in these forms whose sizes are all in range."""

    forms: list[Literal[*FORMS]] = Field(min_length=1)
    activations: list[Literal["silu", "clamp", "swigluoai", "swiglustep"]] = ["silu"]
    num_experts: Range = Range()
    num_local_experts: Range = Range()
    top_k: Range = Range()
    num_groups: Range = Range()
    kept_groups: Range = Range()
    hidden_size: Range = Range()
    intermediate_size: Range = Range()


def why_not(rules: list[Rule], form: str | None, of: dict) -> str | None:
    """None where a rule takes a layer of these sizes in this form, else why the last one of that
    form does not.

    form: None of another operator. of: as a geometry's sizes in the catalogue. The reason names
    what is refused, what the layer has and what is taken.
    """
    forms = dict.fromkeys(each for rule in rules for each in rule.forms)
    why = f"router: has {form}, takes {', '.join(forms) or 'listed definitions alone'}"
    for rule in (rule for rule in rules if form in rule.forms):
        activation = (
            "clamp" if of["activation"] == "silu" and of["swiglu_limit"] else of["activation"]
        )
        refused = [size for size in SIZES if not getattr(rule, size).takes(of[size])]
        if activation not in rule.activations:
            why = f"activation: has {activation}, takes {', '.join(rule.activations)}"
        elif refused:
            why = f"{refused[0]}: has {of[refused[0]]}, takes {getattr(rule, refused[0])}"
        else:
            return None
    return why


def served(rules: list[Rule]) -> list[str]:
    """Keys of the definitions of FP8 layers that one of the rules takes."""
    known = [(key, catalogue.form(key)) for key in catalogue.GEOMETRIES]
    return [
        key
        for key, form in known
        if form and why_not(rules, form, catalogue.GEOMETRIES[key]) is None
    ]
