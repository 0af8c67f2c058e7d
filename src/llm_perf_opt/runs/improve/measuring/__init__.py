"""The processes that measure: one side or both, loaded and warm, and who lets them take turns."""
