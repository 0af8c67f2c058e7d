"""Files become facts: one function per kind of source, used by the stages and by ``ingest``."""
