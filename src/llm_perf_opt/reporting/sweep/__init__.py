"""``sweep.html`` and ``sweep.md``: the jobs of a sweep side by side."""
