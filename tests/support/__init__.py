"""What tests of several folders need, once: waiting, clocks, processes and hubs."""
