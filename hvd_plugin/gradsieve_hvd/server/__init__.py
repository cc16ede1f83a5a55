"""Who may go on when: the decisions of a parameter server, free of weights, bytes and threads.

`node_table` knows the workers, `modes` decide by it. So far only the simulator (`gradsieve simulate modes`)
carries decisions out.
"""
