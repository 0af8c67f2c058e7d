"""Nsight Systems exports (SQLite) and summary tables (CSV)."""
