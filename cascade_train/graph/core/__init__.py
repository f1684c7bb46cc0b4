"""Stand-ins for the core nodes that a graph uses, and all classes here. Its door: `registry.node_classes`."""
