"""Results for people: Markdown, LaTeX, CSV, JSON, figures and a page."""
