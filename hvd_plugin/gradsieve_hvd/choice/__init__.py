"""By which path a bucket of gradients is likely to be summed soonest: predictions, and what they rest on."""
