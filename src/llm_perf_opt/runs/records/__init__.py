"""What a run writes of itself: its manifest and heartbeat, what it worked on and what it depends on."""
