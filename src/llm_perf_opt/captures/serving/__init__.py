"""Records of servers under load: a common form (``records``) and a reader for each tool's files (``reader``)."""
