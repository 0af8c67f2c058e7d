"""What the model said, for people and for scripts: predictions.jsonl, predictions.md, predictions.html."""
