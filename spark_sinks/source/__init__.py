"""The source behind ``format("weft")``: options, the plan of a read, and the tasks that executors run."""
