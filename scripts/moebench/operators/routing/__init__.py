"""How tokens choose experts in generated workloads."""
