"""What DeepSeek-OCR v1 and v2 share: views of a page, the request, configurations and original checkpoints."""
