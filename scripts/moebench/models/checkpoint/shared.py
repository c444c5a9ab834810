"""Read what a config.json says of shared experts, which every token takes beside those it chooses.

A checkpoint stores its shared experts as one network. If that is as wide as a whole number of the
experts that tokens choose, a definition can append it to them as so many further experts. read.py
calls `shared_experts`.
"""

from dataclasses import dataclass

from moebench.models.checkpoint.fields import Fields, without_repeats


@dataclass(frozen=True)
class SharedExperts:
    """A checkpoint's shared experts, one network.

    width: the network's intermediate size. expert_width: the intermediate size of an expert that a
    token chooses. has_gate: whether the network's output is multiplied by a sigmoid of a number
    that is computed from the token. has_other_clamp: whether the network's activation is clamped
    otherwise than the experts'.
    """

    width: int
    expert_width: int
    has_gate: bool
    has_other_clamp: bool

    @property
    def why_not_appended(self) -> str | None:
        """Return why the network cannot be further experts of the layer, or None where it can."""
        if self.width % self.expert_width:
            return (
                f"its width is no multiple of {self.expert_width}, that of the others"
            )
        if self.has_other_clamp:
            return "its activation has limits of its own"
        return None

    @property
    def count(self) -> int:
        """Return how many further experts of the layer the network is; 0 where it cannot be any."""
        return 0 if self.why_not_appended else self.width // self.expert_width


def shared_experts(fields: Fields, expert_width: int) -> SharedExperts | None:
    """Return a checkpoint's shared experts, or None where it has none.

    Qwen's models state the network's width, others the number of experts that it holds.
    expert_width: as in SharedExperts.
    """
    count = whole_or_none(fields, "shared_experts")
    width = whole_or_none(fields, "shared_intermediate_size")
    if width is None and count is None:
        return None
    if width is None:
        width = count * expert_width

    limits = fields.values.get("swiglu_limits_shared")
    has_other_clamp = bool(limits) and limits != fields.values.get("swiglu_limits")
    has_gate = fields.implied.get("shared_gate", False)
    return SharedExperts(width, expert_width, has_gate, has_other_clamp)


def whole_or_none(fields: Fields, key: str) -> int | None:
    """Return a field that is a whole number above 0, or None for anything else.

    key: of the field in `fields.names`. Unlike `fields.whole` this refuses nothing.
    """
    for name in fields.names[key]:
        value = without_repeats(fields.values.get(name))
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
