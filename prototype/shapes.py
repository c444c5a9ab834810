"""The family: experts, local experts, top-k, groups, groups kept, hidden, intermediate, renorm."""

SHAPES = {
    "ds8": (256, 32, 8, 8, 4, 7168, 2048, 0),
    "q30": (128, 128, 8, 1, 1, 2048, 768, 1),
    "k2": (384, 384, 8, 1, 1, 7168, 2048, 0),
    "m2": (256, 256, 8, 1, 1, 3072, 1536, 0),
    "qn": (128, 128, 10, 1, 1, 2048, 512, 1),
    "k2e8": (384, 48, 8, 1, 1, 7168, 2048, 0),
    "q235": (128, 128, 8, 1, 1, 4096, 1536, 1),
    "glm8": (256, 32, 8, 1, 1, 6144, 2048, 0),
    "ds16": (256, 16, 8, 8, 4, 7168, 2048, 0),
    "ds4": (256, 64, 8, 8, 4, 7168, 2048, 0),
    "ds1": (256, 256, 8, 8, 4, 7168, 2048, 0),
}
NAMES = ("EXPERTS", "LOCAL", "TOP_K", "GROUPS", "KEPT_GROUPS", "HIDDEN", "INTER", "RENORM")


def defines(shape):
    return [f"-DMOE_{name}={value}" for name, value in zip(NAMES, SHAPES[shape], strict=True)]
