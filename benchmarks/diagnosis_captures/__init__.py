"""Captures with a known cause of a known size: a simulated host, device and network, written as the tools write them.

``machine`` simulates, ``decoder`` and ``programs`` say what is run, ``planted`` puts causes in, ``cases`` lists the
captures with their labels, ``kineto_file`` and ``nsys_file`` write them, ``checker`` finds the planted loss again in
the written files with interval arithmetic of its own, ``scoring`` compares a diagnosis with the label, ``peers`` asks
other tools.
"""
