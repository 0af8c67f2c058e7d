"""Records of servers under load: one normal form (``records``) and a reader for each tool's files (``reader``)."""
