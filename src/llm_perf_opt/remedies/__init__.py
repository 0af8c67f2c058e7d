"""Remedies: settings that answer a finding, when they apply, and the results of trying them."""
