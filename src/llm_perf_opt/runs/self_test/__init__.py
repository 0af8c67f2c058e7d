"""``doctor --self-test``: what only the user's own machine can show, checked with a program whose work is known."""
