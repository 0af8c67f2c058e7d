"""What a checkpoint is, before and while it becomes a model: its configuration, kind, tokenizer, weights and how they are split."""
