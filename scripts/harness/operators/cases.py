"""The workloads of each geometry: which tokens, which routing, which scales."""

import uuid
from dataclasses import dataclass, field

ROUTED_SCALING_FACTOR = 2.5


@dataclass(frozen=True)
class Case:
    """One workload before it is written down.

    raised: logits added to an expert (global index), to force or to prevent its selection.
    typical: the rank's counts of rows and active experts are to be near their averages.
    scales: "random" leaves them to FIB; "harsh" ships large, negative and zero ones.
    """

    name: str
    uuid: str
    seq_len: int
    offset: int
    raised: dict[int, float] = field(default_factory=dict)
    scales: str = "random"
    typical: bool = False

    @property
    def label(self) -> str:
        """What a line of progress or of a table says of it."""
        label = f"T={self.seq_len} offset={self.offset}"
        return label if self.name.startswith("T=") else f"{self.name} {label}"


PUBLIC = [
    ("e05c6c03-5603-4a1c-b34c-dcce0ecaeea4", 1, 32),
    ("b8f4f012-a32e-4356-b4e1-7665b3d598af", 7, 192),
    ("8cba5890-4288-448a-93b8-42c14c6b9420", 14, 0),
    ("2e69caee-ae5c-473b-aa99-5dc6659829d4", 15, 32),
    ("a7c2bcfd-a2f4-479e-8d32-200115df89cf", 16, 224),
    ("6230e838-67ca-41dd-a9d6-6f36b7676c6b", 32, 32),
    ("f7d6ac7c-24ec-47e4-aefc-4863a5e3e1d9", 52, 160),
    ("fc378037-e8fa-4305-b00f-4af47933fd53", 53, 32),
    ("76010cb4-f73c-4145-8365-8642a2ce99de", 54, 128),
    ("81955b1e-086f-49c1-9f40-a18a5aaf509d", 55, 128),
    ("4822167c-dae5-4bb1-bb53-e4adb256245b", 56, 64),
    ("74d7ff04-0365-4cf8-a824-ce61b7131dea", 57, 96),
    ("e626d3e6-6c29-4fd8-bb7c-5b09eec61702", 58, 64),
    ("eedc63b2-c03b-4cf2-8d16-1f46566e3af7", 59, 160),
    ("5eadab1e-a0e3-4966-b0fd-1115cd77497c", 62, 96),
    ("8f1ff9f1-6747-41d1-a1d8-2868cdacf893", 80, 96),
    ("1a4c6ba1-3cd2-4d7d-b716-84f2d52b69fc", 901, 96),
    ("58a34f27-7995-4155-8b46-f60a7225e20e", 11948, 128),
    ("5e8dc11c-f2a9-42d5-8dce-9419cbf34d5d", 14107, 32),
]

# Lowering everybody else closes the other groups, or they would be chosen in spite of one strong
# expert: a group counts by its best two.
SAME_EIGHT = {e: 9.0 if e in range(64, 96, 4) else -3.0 for e in range(256)}
TAKES_ALL = {e: -9.0 if e in range(128, 160) else -3.0 for e in range(256)} | {131: 9.0}
NONE_LOCAL = dict.fromkeys(range(96, 128), -9.0)

# Each is there for something that an implementation gets wrong.
HARD = [
    ("one-token", 1, 32, {}, "random"),
    ("no-tokens", 0, 0, {}, "random"),
    ("none-local", 5, 96, NONE_LOCAL, "random"),
    ("same-eight-local", 33, 64, SAME_EIGHT, "random"),
    ("one-expert-takes-all", 70, 128, TAKES_ALL, "random"),
    ("first-rank", 16, 0, {}, "random"),
    ("last-rank-odd-length", 37, 224, {}, "random"),
    ("offset-across-groups", 19, 77, {}, "random"),
    ("harsh-scales", 24, 160, {}, "harsh"),
    ("harsh-scales-one-token", 1, 192, {195: 4.0}, "harsh"),
]


def cases(geometry: str, definition: str) -> list[Case]:
    """The workloads of a geometry, a key of GEOMETRIES, ordered as they are run."""
    if geometry == "full":
        return [Case(f"T={t}", public, t, offset, typical=True) for public, t, offset in PUBLIC]
    return [Case(name, str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition}/{name}")), *rest) for name, *rest in HARD]
