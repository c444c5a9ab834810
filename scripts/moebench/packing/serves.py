"""Which FP8 layers a solution serves, by rules in its manifest: a layer that is new needs no
solution edited.
"""

from typing import Literal

from pydantic import Field

from moebench.core.schema import Strict
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu

# the router inside, in two kinds, top-k given, and that with MXFP4 experts
FORMS = ("sigmoid-bias", "renorm", "routed", "mxfp4")
SIZES = (
    "num_experts",
    "num_local_experts",
    "num_shared_experts",
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
        if self.one_of and value not in self.one_of:
            return False
        if self.at_least is not None and value < self.at_least:
            return False
        if self.at_most is not None and value > self.at_most:
            return False
        return value % self.multiple_of == 0

    def __str__(self) -> str:
        """'multiples of 128 from 512 up to 8192'."""
        if self.one_of:
            return ", ".join(map(str, self.one_of))

        parts = []
        if self.multiple_of > 1:
            parts.append(f"multiples of {self.multiple_of}")
        if self.at_least:
            parts.append(f"from {self.at_least}")
        if self.at_most:
            parts.append(f"up to {self.at_most}")
        return " ".join(parts)


class Rule(Strict):
    """One [[serves]] of solution.toml: layers in these forms whose sizes are all in range."""

    forms: list[Literal[*FORMS]] = Field(min_length=1)
    activations: list[Literal[*swiglu.FUNCTIONS]] = ["silu"]
    num_experts: Range = Range()
    num_local_experts: Range = Range()
    num_shared_experts: Range = Range(one_of=[0])
    top_k: Range = Range()
    num_groups: Range = Range()
    kept_groups: Range = Range()
    hidden_size: Range = Range()
    intermediate_size: Range = Range()

    def refusal(self, layer: dict) -> str | None:
        """Return why a layer in one of the rule's forms is not taken, or None where it is."""
        activation = swiglu.kind(layer)
        if activation not in self.activations:
            return f"activation: has {activation}, takes {', '.join(self.activations)}"

        for size in SIZES:
            wanted = getattr(self, size)
            if not wanted.takes(layer[size]):
                return f"{size}: has {layer[size]}, takes {wanted}"
        return None


def why_not(rules: list[Rule], form: str | None, layer: dict) -> str | None:
    """Return None where a rule takes a layer in this form, else why the last rule of that form does
    not: what is refused, what the layer has and what is taken.

    form: None for another operator. layer: sizes and activation, as the catalogue has them.
    """
    forms = dict.fromkeys(each for rule in rules for each in rule.forms)
    if form == "mxfp4":
        reason = "weights: has MXFP4, takes FP8"
    else:
        reason = f"router: has {form}, takes {', '.join(forms) or 'listed definitions alone'}"

    for rule in rules:
        if form in rule.forms:
            reason = rule.refusal(layer)
            if reason is None:
                return None
    return reason


def served(rules: list[Rule]) -> list[str]:
    """Return the keys of the definitions of FP8 layers that one of the rules takes."""
    keys = []
    for key, layer in catalogue.layer_sizes().items():
        form = catalogue.form(key)
        if form and why_not(rules, form, layer) is None:
            keys.append(key)
    return keys
