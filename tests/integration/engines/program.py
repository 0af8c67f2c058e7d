"""The program that jobs of these tests measure: cheap (no torch), and it does what its name says."""

import sys
import time

name = sys.argv[1]
if name.startswith("crash"):
    sys.exit("planned to crash")
time.sleep(120 if name.startswith("slow") else 0.2)
