"""What a node may ask of the place it runs in."""
