"""Work on a processor: what operators do, what dispatching them costs, and what limits a phase."""
