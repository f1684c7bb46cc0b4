"""Our own executor, and what it would do. Its doors take a `Checked`: `loop.execute` and `plan.dry_run`."""
