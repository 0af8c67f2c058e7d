"""From a timeline to phases, budgets and totals."""
