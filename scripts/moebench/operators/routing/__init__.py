"""How tokens choose experts in generated workloads.

trained_router.py   router outputs that look like a trained router's
numbers.py          the random numbers that these are made of
kinds.py            workloads at any number of tokens, skewed, uniform or with one expert
"""
