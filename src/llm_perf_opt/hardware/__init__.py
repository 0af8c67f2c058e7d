"""Device limits and state: catalogue, detection, probe, sensors, leases and measured operator tables."""
