"""Which FP8 layers a solution serves, by rules in its manifest, so that a new layer needs no edit.

    [[serves]]
    forms = ["routed"]
    num_local_experts = { at_most = 256 }
    hidden_size = { multiple_of = 512, at_least = 1024 }

takes each layer of that form whose sizes are in range; a size without a range may have any value.
manifest.py adds the layers that are taken to the solution's definitions, and `moebench model` shows
by `why_not` why another layer is not.
"""

from typing import Literal

from pydantic import Field

from moebench.core.schema import Strict
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu

# Ways to call the layer. In this order: DeepSeek-V3's router is inside; a softmax router is inside;
# top-k is given; top-k is given and experts are in MXFP4.
FORMS = ("sigmoid-bias", "renorm", "routed", "mxfp4")


class Range(Strict):
    """The values that a size may have. one_of: if not empty, the only ones."""

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
        """Return the range in words: 'multiples of 128 from 512 up to 8192', or '8, 16'."""
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
    """One [[serves]] of solution.toml: takes layers of these forms whose sizes are all in range."""

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
        """Return why the rule does not take a layer of one of its forms, or None where it does.

        layer: sizes and activation, as in catalogue.layer_sizes().
        """
        activation = swiglu.kind(layer)
        if activation not in self.activations:
            return f"activation: has {activation}, takes {', '.join(self.activations)}"

        for size, wanted in self:
            if isinstance(wanted, Range) and not wanted.takes(layer[size]):
                return f"{size}: has {layer[size]}, takes {wanted}"
        return None


def why_not(rules: list[Rule], form: str | None, layer: dict) -> str | None:
    """Return why no rule takes a layer, "hidden_size: has 1000, takes multiples of 512", or None
    where one does.

    If several rules have the layer's form, it is the last one's reason. form: one of FORMS; None
    for another operator than the FP8 layer.
    """
    reason = why_no_rule(rules, form)
    for rule in rules:
        if form in rule.forms:
            reason = rule.refusal(layer)
            if reason is None:
                return None
    return reason


def why_no_rule(rules: list[Rule], form: str | None) -> str:
    """Return why a layer is not taken whose form no rule has."""
    if form == "mxfp4":
        return "weights: has MXFP4, takes FP8"
    forms = []
    for rule in rules:
        forms += [each for each in rule.forms if each not in forms]
    return f"router: has {form}, takes {', '.join(forms) or 'listed definitions alone'}"


def served(rules: list[Rule]) -> list[str]:
    """Return the keys of all FP8 layers that one of the rules takes."""
    keys = []
    for key, layer in catalogue.layer_sizes().items():
        form = catalogue.form(key)
        if form and why_not(rules, form, layer) is None:
            keys.append(key)
    return keys
