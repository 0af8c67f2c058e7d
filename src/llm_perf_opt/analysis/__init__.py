"""Tables to facts, and facts to the summary. Pure functions: no files are opened and no program is started."""
