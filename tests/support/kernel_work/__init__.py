"""Workloads that call the kernels as a broker does, to record their argument types."""
