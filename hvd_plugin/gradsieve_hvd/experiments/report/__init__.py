"""``gradsieve report``: what real training's gradients look like, and what the methods make of them."""
