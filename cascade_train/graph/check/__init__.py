"""What the node classes declare, and whether a workflow fits them. Its door: `checked.checked`."""
