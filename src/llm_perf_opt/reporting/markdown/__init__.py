"""Markdown reports."""
