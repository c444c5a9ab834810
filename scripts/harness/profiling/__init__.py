"""Where a solution's time goes: calls, profilers, records of stages."""
