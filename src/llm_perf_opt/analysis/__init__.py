"""Analysis: pure functions from tables to facts and from facts to the summary. No files are opened, no programs
started.
"""
