"""Reports: tables, charts, and the HTML, Markdown and console writers."""
