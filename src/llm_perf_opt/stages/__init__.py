"""The stages of a run; one module or package each, with its configuration, commands and facts."""
