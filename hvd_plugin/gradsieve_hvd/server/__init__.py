"""A parameter server that lives in the ranks.

Who may go on when is decided free of weights, bytes and threads: `node_table` knows the workers, `modes`
decide by it; `gradsieve simulate modes` plays them. On real ranks `decision_maker` writes their orders,
`shard` executes them, `server_thread` reads a rank's letters and `worker` pushes.
"""
