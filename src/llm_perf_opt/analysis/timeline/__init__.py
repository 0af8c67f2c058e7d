"""What a timeline shows: attribution, budgets, idle time, communication, engine steps."""
