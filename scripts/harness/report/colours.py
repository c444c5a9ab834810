"""Each solution's colour and mark: the same in every figure and on the results page, whatever else is shown.

They depend on the name alone, so a new solution changes nobody else's. A solution that is not listed gets one of the
SPARE colours; to choose its own, add it to LISTED. Solutions of different operators never meet, so they may share.
"""

from zlib import crc32

# (on a light ground, on a dark one); each has a contrast of at least 4.5 there
PALETTE = {
    "blue": ("#0a63c9", "#6db3ff"),
    "pink": ("#bd185f", "#ff92c1"),
    "green": ("#0d7a54", "#52d3a2"),
    "purple": ("#8e35b5", "#d79dff"),
    "ochre": ("#94650a", "#e6c04c"),
    "teal": ("#0c7288", "#50d1e6"),
    "slate": ("#4a5563", "#b7c1cd"),
    "orange": ("#c2410c", "#ff9c5f"),
    "olive": ("#5d6b00", "#b9cc3a"),
    "brown": ("#7a3b1e", "#d99a78"),
    "indigo": ("#4b3fbf", "#a9a0ff"),
}
LISTED = {
    "hopper_fused": "blue",
    "hopper_fused_exact": "pink",
    "triton_fused_v2": "green",
    "sglang_triton": "purple",
    "cutlass_grouped": "ochre",
    "deepgemm": "orange",
    "flashinfer_trtllm": "teal",
    "flashinfer_cutlass": "slate",
    "gather_scatter_bf16": "blue",
    "align_fused_bf16": "pink",
    "torch_grouped_bf16": "slate",
    "triton_mxfp8": "green",
    "torch_scaled_mxfp8": "ochre",
    "torch_mxfp8_emulated": "slate",
}
SPARE = ("olive", "brown", "indigo")
NUM_MARKS = 8  # shapes, in figures/style.py and results_page.js


def colour(solution: str) -> str:
    """A key of PALETTE."""
    return LISTED.get(solution) or SPARE[crc32(solution.encode()) % len(SPARE)]


def mark(solution: str) -> int:
    """0 <= mark < NUM_MARKS."""
    if solution in LISTED:
        return list(PALETTE).index(LISTED[solution]) % NUM_MARKS
    return crc32(solution.encode()) // len(SPARE) % NUM_MARKS
