"""What goes wrong, as a table: each case with the exit code, the words and the files a user must find.

``tests/faults/test_matrix.py`` runs the quick cases in this process; ``python -m tests.faults.matrix`` runs all of them,
each in a process of its own, and prints the table.
"""
