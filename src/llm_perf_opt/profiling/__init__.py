"""Module paths of the specification: thin re-exports of the run directory and of the Nsight command builders."""
