"""The main job: real training with and without compression over a slow link, measured and shown."""
