"""What hostile input, planted files and copied command lines must not do, as a table that runs.

``tests/faults/test_security.py`` runs the quick checks; ``python -m tests.faults.security`` runs all of them and prints the table.
"""
