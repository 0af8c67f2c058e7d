"""Runs and their expected times: what tables of measured operators predict of a change before it is measured."""
