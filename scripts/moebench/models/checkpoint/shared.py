"""What a config.json says of the shared experts, which every token takes beside its own ones."""

from dataclasses import dataclass

from moebench.models.checkpoint.fields import Fields, without_repeats


@dataclass(frozen=True)
class SharedExperts:
    """A checkpoint's shared experts, one network.

    width: of all of them together. expert_width: of an expert that is chosen. has_gate: whether a
    sigmoid of the token's own weighs it. has_own_clamp: whether its activation is another one.
    """

    width: int
    expert_width: int
    has_gate: bool
    has_own_clamp: bool

    @property
    def why_not_appended(self) -> str | None:
        """Why it is not some experts more of the layer's, or None where it is."""
        if self.width % self.expert_width:
            return f"its width is no multiple of {self.expert_width}, that of the others"
        if self.has_own_clamp:
            return "its activation has limits of its own"
        return None

    @property
    def count(self) -> int:
        """How many experts it is, appended to the others; 0 where it cannot be."""
        return 0 if self.why_not_appended else self.width // self.expert_width


def shared_experts(fields: Fields, expert_width: int) -> SharedExperts | None:
    """Return a checkpoint's shared experts, or None where it has none.

    Qwen's models name their width, others how many experts' widths it is.
    """
    count = whole_or_none(fields, "shared_experts")
    width = whole_or_none(fields, "shared_intermediate_size")
    if width is None and count is None:
        return None
    if width is None:
        width = count * expert_width
    limits = fields.values.get("swiglu_limits_shared")
    own_clamp = bool(limits) and limits != fields.values.get("swiglu_limits")
    has_gate = fields.implied.get("shared_gate", False)
    return SharedExperts(width, expert_width, has_gate, own_clamp)


def whole_or_none(fields: Fields, key: str) -> int | None:
    """Return a field's whole number above 0, or None for anything else: nothing is refused."""
    for name in fields.names[key]:
        value = without_repeats(fields.values.get(name))
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
