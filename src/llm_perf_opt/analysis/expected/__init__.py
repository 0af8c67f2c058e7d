"""How long a model may be expected to take: its operators, timed one by one and added up."""
