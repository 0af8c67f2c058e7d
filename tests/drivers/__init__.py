"""Drivers and vendor tools of machines we do not have: transcripts, programs that play them, a driver library."""
