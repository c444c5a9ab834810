"""h_split: FP8 values that stand for one of h above 32 rows per expert (1024 tokens of
DeepSeek-V3): h alone.

Below it is always two, hi = fp8(h) and lo = fp8(h - hi), as they cost little there.
"""

H_SPLIT = 1
