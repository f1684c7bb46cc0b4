"""A workflow as text for people. Its doors: `summary.summary_of` and, of its nodes, `drawing.draw_graph`."""
