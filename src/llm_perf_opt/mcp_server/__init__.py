"""``llm-perf-opt mcp``: agents read finished runs through the Model Context Protocol."""
