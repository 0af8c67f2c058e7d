"""Where does LLM and VLM inference time go, how far is it from the hardware, what to change first."""

__version__ = "0.1.0"
