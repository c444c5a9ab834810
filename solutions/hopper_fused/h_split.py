"""h_split: the number of FP8 values that hold an element of h with more than 32 rows per expert.

That is more than 1024 tokens of DeepSeek-V3. Here it is one, fp8(h). With fewer rows it is always
two, hi = fp8(h) and lo = fp8(h - hi), as they cost little there. main.py passes H_SPLIT to the
kernels; the variants of this solution replace this file.
"""

H_SPLIT = 1
