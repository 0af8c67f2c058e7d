"""The one version number: of the package, of ``--version`` and of reports."""

__version__ = "0.1.0"
