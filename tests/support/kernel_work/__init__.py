"""Work that calls the kernels of a group as a broker does, from which their types are recorded."""
