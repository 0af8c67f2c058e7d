"""Command builders of Nsight Systems and Nsight Compute, at the module paths of the specification."""
