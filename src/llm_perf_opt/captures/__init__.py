"""File formats to tables: Kineto traces, Nsight Systems, Nsight Compute, timings."""
