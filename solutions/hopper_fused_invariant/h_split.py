"""h_split: two FP8 values for each one of h at every token count, hi = fp8(h) and lo = fp8(h -
hi).
"""

H_SPLIT = 2
