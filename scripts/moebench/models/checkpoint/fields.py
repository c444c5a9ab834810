"""The fields of a config.json, each found under any of its names, checked, or refused by name. The
other files of this folder take their values from a Fields.

`fields.whole("num_experts")` is the value of "n_routed_experts", "num_experts" or another name that
config_json.toml lists for num_experts. A value that is no number raises ValueError,
"n_routed_experts: has 'x', want a whole number above 0".
"""

import functools
import math
import reprlib
import tomllib
from dataclasses import dataclass

from moebench.operators.layers import definitions_folder


@functools.cache
def facts() -> dict:
    """Return the content of config_json.toml."""
    file = definitions_folder() / "config_json.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def text_part(config: dict) -> dict:
    """Return the part of a config.json that describes the language model, or all of it."""
    for name in facts()["fields"]["text_part"]:
        part = config.get(name)
        if isinstance(part, dict):
            return text_part(part)
    return config


def without_repeats(value: object) -> object:
    """Return the first value of a list whose values are all equal, anything else as it is."""
    if not isinstance(value, list) or not value:
        return value
    first = value[0]
    return first if value.count(first) == len(value) else value


@dataclass(frozen=True)
class Fields:
    """The fields of a config.json, by their keys in config_json.toml.

    values: name -> value of the part on the language model. names: key -> the names that the field
    may have. implied: key -> value of a field that has none of its names.
    """

    values: dict
    names: dict[str, list[str]]
    implied: dict

    @classmethod
    def of_config(cls, config: dict) -> "Fields":
        """Return the fields of a config.json's content."""
        values = text_part(config)
        implied = {}
        for entry in facts()["implied"]:
            if values.get("model_type") in entry["model_types"]:
                implied |= entry

        names = dict(facts()["fields"])

        widths = names["intermediate_size"]
        if not any(name in values for name in widths):
            if "width" in implied:
                names["intermediate_size"] = [implied["width"]]
            elif "dense_intermediate_size" in values:
                # then intermediate_size is the experts'
                names["intermediate_size"] = ["intermediate_size"]
        return cls(values, names, implied)

    def get(self, key: str, default: object = None) -> object:
        """Return a field's value, else what the model's code implies, else the default.

        Raises ValueError where two of its names contradict each other.
        """
        present = self.present(key)
        if not present:
            return self.implied.get(key, default)

        values = list(present.values())
        if len(set(map(str, values))) > 1:
            names = " and ".join(present)
            listed = ", ".join(map(str, values))
            raise ValueError(f"{names}: contradict each other: {listed}")
        return values[0]

    def present(self, key: str) -> dict[str, object]:
        """Return name -> value, for those of a field's names that are there and not null."""
        values = {}
        for name in self.names[key]:
            value = self.values.get(name)
            if value is not None:
                values[name] = value
        return values

    def name(self, key: str) -> str:
        """Return a field's name for messages: the one that is there, else the first of all."""
        return next(iter(self.present(key)), self.names[key][0])

    def require(self, key: str, fits: bool, wanted: str) -> None:
        """Raise ValueError, which names the field, its value and what is wanted, unless it fits."""
        if not fits:
            has = reprlib.repr(self.get(key))  # a list for each layer is cut
            raise ValueError(f"{self.name(key)}: has {has}, want {wanted}")

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a field that is a whole number above 0, or a list of equal ones.

        Raises ValueError for anything else, and for a missing field without a default.
        """
        value = without_repeats(self.get(key, default))
        if value is None:
            first, *others = self.names[key]
            listed = ", ".join(others) or "any other name of it"
            raise ValueError(f"{first}: missing, and so is {listed}")

        fits = is_number(value) and isinstance(value, int) and value > 0
        self.require(key, fits, "a whole number above 0, or a list of equal ones")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a field that is a number of 0 or more. Raises ValueError for anything else."""
        value = without_repeats(self.get(key, default))
        fits = is_number(value) and 0 <= value < math.inf
        self.require(key, fits, "a number of 0 or more")
        return float(value)


def is_number(value: object) -> bool:
    """Return whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
