"""Analysis of timelines: attribution, budgets, idle time, communication, engine steps."""
