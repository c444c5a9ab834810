"""terms: FP8 terms of h above 32 rows per expert (1024 tokens of DeepSeek-V3). Below it has two: they cost little."""

TERMS = 1
