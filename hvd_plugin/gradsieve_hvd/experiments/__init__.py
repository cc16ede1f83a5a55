"""Real training, measured: tasks, the demo, benchmarks, reports, the papers' claims, simulated ranks."""
