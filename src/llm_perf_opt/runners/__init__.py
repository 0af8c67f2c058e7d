"""Entry points at the module paths of earlier releases."""
