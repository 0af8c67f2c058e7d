"""Several ranks of one program: which capture is whose, and who waits for whom."""
