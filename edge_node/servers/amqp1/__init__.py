"""AMQP 1.0 at a listener: Proton's engine between the node's connections and its log."""
