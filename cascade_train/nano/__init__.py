"""Making the nano models: a small Stable Cascade trained from nothing by the library's own runs."""
