"""Roofline limits, utilisation, floors and expected times, on this device and others."""
