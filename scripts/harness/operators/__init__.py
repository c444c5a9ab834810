"""The operators: their sizes, workloads, routing and roofline bound. Imports core alone."""
