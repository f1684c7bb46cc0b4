"""Control: filters that make of a picture what a ControlNet is steered by, and the ControlNet."""
