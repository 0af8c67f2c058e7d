"""The static model of a workload: its section of the summary, and the document of its own."""
